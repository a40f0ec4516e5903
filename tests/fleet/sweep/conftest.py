"""Sweepers for each test, with a queue of its own."""

from pathlib import Path

import pytest

from sweep_jobs import Sweepers


@pytest.fixture
def sweepers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweepers:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    made = Sweepers(tmp_path)
    monkeypatch.setattr("sys.executable", str(made.script))
    return made
