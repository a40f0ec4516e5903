"""Removing a run: only one of ours, and of it only the files that we write, by name. All else stays."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mission_gym.errors import RunStateError
from mission_gym.store import checkpoints
from mission_gym.store.files import disk_errors, read_json
from mission_gym.store.rundir import EVAL_NAMES, OWN_NAMES, RunDir

_STATUS = {"state", "created", "pid", "heartbeat"}
_FOLDERS = ("env", "eval", "checkpoints", "tensorboard")
_PATTERNS = (
    *(f"checkpoints/*step_*/{name}" for name in checkpoints.FILES),
    f"eval/{EVAL_NAMES}",
    "tensorboard/events.out.tfevents.*",
    *OWN_NAMES,  # the status and the lock last, so that what a kill leaves can be removed again
)


def check_ours(run: RunDir) -> None:
    """RunStateError if the folder is not a run that we made."""
    what = ""
    if run.path.is_symlink() or not run.path.is_dir():
        what = "a link" if run.path.is_symlink() else "not a folder"
    elif not (run.path / ".lock").is_file() or run.status_json.is_symlink():
        what = "not a run of ours: it has no .lock"
    else:
        try:
            status = read_json(run.status_json)
        except RunStateError:
            status = None
        if not isinstance(status, dict) or not status.keys() >= _STATUS:
            what = "not a run of ours: it has no status.json with a state, a pid and times"
    if what:
        raise RunStateError(f"{run.path} is {what}; nothing in it is deleted")


def find_own(run: RunDir) -> list[Path]:
    """The files of a run that we wrote; what is reached through a link is not ours."""
    root = Path(os.path.realpath(run.path))
    found: list[Path] = []
    with suppress(RunStateError, AttributeError, TypeError):  # without the list, what lies in env/ stays
        for name in read_json(run.env_files_json).values():
            if name == Path(name).name:
                copy = root / "env" / name
                found += [copy, *copy.rglob("*")]
    found += [path for pattern in _PATTERNS for path in root.glob(pattern)]
    return [path for path in found if path.is_file() and os.path.realpath(path) == str(path)]


def remove_run(run: RunDir) -> None:
    """Delete our files, and each folder in which nothing else is; the caller holds the lock. DiskError."""
    check_ours(run)
    with disk_errors(run.path):
        for path in find_own(run):
            path.unlink()
    inside = [path for path in run.path.rglob("*") if path.relative_to(run.path).parts[0] in _FOLDERS]
    for folder in [*sorted(inside, reverse=True), run.path]:
        with suppress(OSError):  # it is a file, a link, or not empty
            folder.rmdir()
