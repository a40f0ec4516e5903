"""A crew for each test."""

from pathlib import Path

import pytest

from queue_jobs import Crew


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    return Crew(tmp_path, monkeypatch)
