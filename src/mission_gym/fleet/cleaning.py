"""Removing a group: its runs beside it, and of its folder the files that we wrote, by name. All else stays.

Only a group without work left: no process of its jobs lives, and no supervisor knows of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.errors import RunStateError, UsageError
from mission_gym.fleet.queue import Queue
from mission_gym.store import lock
from mission_gym.store.files import disk_errors
from mission_gym.store.groups import GroupDir, list_groups
from mission_gym.store.resolve import list_runs, match_name
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import OF_A_SWEEP

_LOCK = ".journal.jsonl-lock"


class DoomedGroup(NamedTuple):
    """A group that cleaning would delete."""

    group: GroupDir
    runs: tuple[RunDir, ...]
    size_bytes: int
    num_foreign: int  # files in its folder that are not ours, and stay

    def document(self) -> dict[str, Any]:
        """The item as `runs clean --json` has it; its runs are items of their own."""
        own = {"group": self.group.name, "path": str(self.group.path)}
        return own | {"size_bytes": self.size_bytes, "num_foreign": self.num_foreign}


def find_removable_group(text: str, runs_dir: Path) -> tuple[GroupDir, str] | None:
    """The group to be removed and a note to say aloud, None if that is a run: a name in the runs folder, else
    a path in it, or a full one."""
    if "@" in text or text == "latest":
        return None
    if "/" in text or os.sep in text:
        group = GroupDir(Path(text))
        if not group.exists:
            return None
        if not Path(text).is_absolute() and group.path.parent.resolve() != runs_dir.resolve():
            raise UsageError(f"{text!r} is not in the runs folder {runs_dir}; give its full path [RUN]")
        return group, ""
    groups = {group.name: group for group in list_groups(runs_dir)}
    if not groups:
        return None
    dated = [(run.created, run.name) for run in list_runs(runs_dir)]
    dated += [(group.read().created, name) for name, group in groups.items()]
    known = [name for _, name in sorted(dated)]
    remedy = f"there are the groups {', '.join(groups)}, and `mission-gym runs list` shows the runs"
    found, note = match_name(text, known, "run or group", f" in {runs_dir}", remedy)
    return (groups[found], note) if found in groups else None


def plan_group_removal(group: GroupDir, queue: Queue) -> DoomedGroup:
    """What would go; RunStateError for a group that is not ours, or has work left."""
    if group.path.is_symlink() or group.group_json.is_symlink():
        raise RunStateError(f"{group.path} is a link; nothing in it is deleted")
    if not (group.path / _LOCK).is_file():
        raise RunStateError(
            f"{group.path} is not a group of ours: it has no {_LOCK}; nothing in it is deleted"
        )
    group.read()
    jobs = group.read_jobs()
    is_waited_for = any(each.path == group.path for each in queue.list_groups())
    if is_waited_for or any(group.is_alive(name) for name in jobs):
        raise RunStateError(
            f"{group.name} has work left; end it with `mission-gym jobs stop {group.name}` first"
        )
    own = list(_find_own(group, list(jobs)))
    beside = (group.path.parent / job.run.name for job in jobs.values() if job.run is not None)
    runs = tuple(RunDir(path) for path in dict.fromkeys(beside) if path.is_dir() and not path.is_symlink())
    others = sum(not path.is_dir() or path.is_symlink() for path in group.path.rglob("*")) - len(own)
    return DoomedGroup(group, runs, sum(path.stat().st_size for path in own), others)


def remove_group(group: GroupDir, queue: Queue) -> None:
    """Delete our files of a group, and each folder in which nothing else is; its runs are gone. DiskError."""
    with lock.hold(group.path / _LOCK, wait_s=0.0):  # nobody adds a job meanwhile
        plan_group_removal(group, queue)
        with disk_errors(group.path):
            for path in _find_own(group, list(group.read_jobs())):
                path.unlink()
        for folder in (group.path / "jobs", group.path):
            with suppress(OSError):  # not empty
                folder.rmdir()
    queue.forget(group)


def _find_own(group: GroupDir, names: list[str]) -> Iterator[Path]:
    """Our files, but for what is reached through a link; those that say what is ours last, so that what a
    kill leaves can be removed again."""
    root = Path(os.path.realpath(group.path))
    here = GroupDir(root)
    of_jobs = [each(name) for name in names for each in (here.log, here.lock, here.run_file, here.end_file)]
    whole = (*OF_A_SWEEP, "report.html", "journal.jsonl", "group.json", _LOCK)
    for path in [*of_jobs, *(root / name for name in whole)]:
        if path.is_file() and os.path.realpath(path) == str(path):
            yield path
