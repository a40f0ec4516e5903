"""A crew for each test."""

from pathlib import Path

import pytest
from crew import Crew


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    return Crew(tmp_path, monkeypatch)
