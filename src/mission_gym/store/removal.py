"""Removal of a run: only a folder that we made, and in it only files that we write, by name.

Everything else stays, and symbolic links are never followed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from mission_gym.errors import RunStateError
from mission_gym.store import checkpoints
from mission_gym.store.files import disk_errors, read_json
from mission_gym.store.rundir import EVAL_NAMES, OWN_NAMES, RunDir

_STATUS = {"state", "created", "pid", "heartbeat"}
_PATTERNS = (
    *(f"checkpoints/*step_*/{name}" for name in checkpoints.FILES),
    f"eval/{EVAL_NAMES}",
    *OWN_NAMES,  # the status and the lock come last, so that a removal that was killed can be repeated
)


def check_ours(run: RunDir) -> None:
    """Raise RunStateError if the folder is not a run that we made."""
    what = ""
    if run.path.is_symlink() or not run.path.is_dir():
        what = "a link" if run.path.is_symlink() else "not a folder"
    elif not _is_file(run.path / ".lock"):
        what = "not a run of ours: it has no .lock"
    else:
        with suppress(RunStateError):
            status = read_json(run.status_json) if _is_file(run.status_json) else None
            if isinstance(status, dict) and status.keys() >= _STATUS:
                return
        what = "not a run of ours: it has no status.json with a state, a pid and times"
    raise RunStateError(f"{run.path} is {what}; nothing in it is deleted")


def find_own(run: RunDir, of_sinks: Iterable[str]) -> list[Path]:
    """List the files of a run that we wrote; of_sinks: globs of the files and links that sinks write."""
    root = Path(os.path.realpath(run.path))
    files = [path for pattern in of_sinks for path in root.glob(pattern)]
    links = [path for path in files if path.is_symlink() and _is_direct(path.parent)]
    with suppress(RunStateError, AttributeError, TypeError):  # without the list, the content of env/ stays
        for name in read_json(run.env_files_json).values():
            if name == Path(name).name:
                copy = root / "env" / name
                files += [copy, *copy.rglob("*")]
    files += [path for pattern in _PATTERNS for path in root.glob(pattern)]
    return [*links, *(path for path in dict.fromkeys(files) if path.is_file() and _is_direct(path))]


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_direct(path: Path) -> bool:
    """Return whether a path leads through no symbolic link."""
    return os.path.realpath(path) == str(path)


def remove_run(run: RunDir, of_sinks: Collection[str]) -> None:
    """Delete our files, then our folders that are empty; the caller holds the lock. DiskError."""
    check_ours(run)
    with disk_errors(run.path):
        for path in find_own(run, of_sinks):
            path.unlink()
    folders = {"env", *(pattern.partition("/")[0] for pattern in (*of_sinks, *_PATTERNS) if "/" in pattern)}
    inside = [path for path in run.path.rglob("*") if path.relative_to(run.path).parts[0] in folders]
    for folder in [*sorted(inside, reverse=True), run.path]:
        with suppress(OSError):  # it is a file, a link, or not empty
            folder.rmdir()
