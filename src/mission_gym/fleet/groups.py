"""A group of runs from its first job to its removal.

It is opened from a job file or continued, its jobs are stopped and resumed by requests in its journal, its
result is written when its jobs have ended, and `runs clean` removes it. Removal deletes only files that we
wrote, by name, and only if no process of the group lives and no supervisor has it in its queue.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mission_gym.config.plain_yaml import read_stored
from mission_gym.errors import ConfigError, MissionGymError, RunStateError, UsageError
from mission_gym.fleet.queue import Queue
from mission_gym.intervals import describe_seeds
from mission_gym.store import lock
from mission_gym.store.evals import read_last_return
from mission_gym.store.files import disk_errors
from mission_gym.store.groups import GroupDir, Job, JobRequest, Kind, list_groups
from mission_gym.store.resolve import list_runs, match_name
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import OF_A_SWEEP

_LOCK = ".journal.jsonl-lock"


def find_newest_group(name: str, runs_dir: Path, kind: Kind = "jobs") -> GroupDir | None:
    """The newest group of this name and kind in a folder."""
    for group in reversed(list_groups(runs_dir)):
        record = group.read()
        if (record.kind, record.name) == (kind, name):
            return group
    return None


def open_group(
    queue: Queue, name: str, runs_dir: Path, requests: Sequence[JobRequest], *, trust: bool
) -> tuple[GroupDir, bool]:
    """Put the group of a job file into the queue; returns it, and whether it is new. ConfigError for jobs
    that changed after they started. trust: also continue a group that this user did not make."""
    group = find_newest_group(name, runs_dir)
    if group is None:
        return queue.make_group(runs_dir, name, "jobs", requests), True
    if trust:
        queue.allow_all(group)
    queue.check_own(group)
    update_jobs(queue, group, requests)
    queue.register(group)
    return group, False


def update_jobs(queue: Queue, group: GroupDir, requests: Sequence[JobRequest]) -> None:
    """Add new jobs, and retry failed and stopped ones; ConfigError for jobs that changed after they
    started."""
    before = group.read_jobs()
    problems, new, again = [], [], []
    for request in requests:
        job = before.get(request.name)
        has_started = job is not None and (job.run is not None or job.state == "starting")
        if job is None:
            new.append(request)
        elif has_started and _list_values(job.request) != _list_values(request):
            problems.append(
                f"job {request.name!r} changed after it started in {group.name}; rename the job, or give the"
                " file another `name:`"
            )
        elif job.state in ("failed", "stopped"):
            again.append(request)
        elif job.state == "queued" and job.request != request:
            new.append(request)
    if problems:
        raise ConfigError(problems)
    queue.add(group, [*new, *again])  # with the present --trust, folder, Python and variables
    ask_jobs(group, [each.name for each in again], "resume")


def _list_values(request: JobRequest) -> list[str]:
    """The arguments of a job, without the path of its file."""
    return [word for word in request.arguments if not word.startswith("--via=")]


def ask_jobs(group: GroupDir, names: Iterable[str], what: Literal["stop", "resume"]) -> None:
    """Ask the supervisor to stop or resume jobs of a group."""
    for name in names:
        group.note("asked", name, what=what)


def write_result(group: GroupDir, jobs: Iterable[Job]) -> None:
    """Write the result of a group whose jobs have ended: the interquartile mean of the last evaluations. Runs
    without an evaluation do not count."""
    jobs = list(jobs)
    env_ids = set()
    returns: dict[str, list[float]] = {}  # by variant: the strata
    best: tuple[float, str] | None = None
    for job in jobs:
        if job.run is not None and job.state == "done":
            last = None
            with suppress(RunStateError):
                last = read_last_return(RunDir(job.run))
            if last is not None:
                returns.setdefault(job.request.variant, []).append(last)
                env_ids.add(_read_env_id(RunDir(job.run)))
                best = max(best or (last, str(job.run)), (last, str(job.run)))
    pooled = list(returns.values())
    if len(env_ids) > 1 or group.read().kind == "sweep":
        # Returns of different environments, or of settings that a search tried, are not one sample.
        best, pooled = None, []
    group.write(
        runs=[str(job.run) for job in jobs if job.run is not None],
        best_run=best and best[1],
        variants={name: describe_seeds([each]) | {"seeds": len(each)} for name, each in returns.items()},
        **describe_seeds(pooled),
    )


def _read_env_id(run: RunDir) -> Any:
    with suppress(MissionGymError):
        return read_stored(run.config_yaml)["env.env_id"].value
    return None


class GroupDeletion(NamedTuple):
    """A group that `runs clean` would delete."""

    group: GroupDir
    runs: tuple[RunDir, ...]
    size_bytes: int
    num_foreign: int  # files in its folder that are not ours, and stay

    def document(self) -> dict[str, Any]:
        """The item of `runs clean --json`; the group's runs are separate items."""
        own = {"group": self.group.name, "path": str(self.group.path)}
        return own | {"size_bytes": self.size_bytes, "num_foreign": self.num_foreign}


def find_removable_group(text: str, runs_dir: Path) -> tuple[GroupDir, str] | None:
    """The group to remove and a note for the user; None if the text means a run. A group is given by its name
    in the runs folder, by a path in that folder, or by a full path."""
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
    remedy = f"the groups are {', '.join(groups)}, and `mission-gym runs list` shows the runs"
    found, note = match_name(text, known, "run or group", f" in {runs_dir}", remedy)
    return (groups[found], note) if found in groups else None


def plan_group_removal(group: GroupDir, queue: Queue) -> GroupDeletion:
    """The files to delete; RunStateError for a group that is not ours or has unfinished jobs."""
    if group.path.is_symlink() or group.group_json.is_symlink():
        raise RunStateError(f"{group.path} is a symbolic link; nothing in it is deleted")
    if not (group.path / _LOCK).is_file():
        raise RunStateError(
            f"{group.path} was not made by mission-gym: it has no {_LOCK}; nothing in it is deleted"
        )
    group.read()
    jobs = group.read_jobs()
    is_queued = any(each.path == group.path for each in queue.list_groups())
    if is_queued or any(group.is_alive(name) for name in jobs):
        raise RunStateError(
            f"{group.name} has unfinished jobs; stop them first: `mission-gym jobs stop {group.name}`"
        )
    own = list(_find_own(group, jobs))
    paths = dict.fromkeys(group.path.parent / job.run.name for job in jobs.values() if job.run is not None)
    runs = tuple(RunDir(path) for path in paths if path.is_dir() and not path.is_symlink())
    num_files = sum(not path.is_dir() or path.is_symlink() for path in group.path.rglob("*"))
    return GroupDeletion(group, runs, sum(path.stat().st_size for path in own), num_files - len(own))


def remove_group(group: GroupDir, queue: Queue) -> None:
    """Delete our files of a group, and each folder that is then empty. Its runs are already gone.
    DiskError."""
    with lock.hold(group.path / _LOCK, wait_s=0.0):  # no job can be added meanwhile
        plan_group_removal(group, queue)
        with disk_errors(group.path):
            for path in _find_own(group, group.read_jobs()):
                path.unlink()
        for folder in (group.path / "jobs", group.path):
            with suppress(OSError):  # not empty
                folder.rmdir()
    queue.forget(group)


def _find_own(group: GroupDir, names: Iterable[str]) -> Iterator[Path]:
    """Our files, except those behind symbolic links. The files that mark the group as ours come last, so that
    an interrupted removal can be repeated."""
    root = Path(os.path.realpath(group.path))
    here = GroupDir(root)
    of_jobs = [each(name) for name in names for each in (here.log, here.lock, here.run_file, here.end_file)]
    whole = (*OF_A_SWEEP, "report.html", "journal.jsonl", "group.json", _LOCK)
    for path in [*of_jobs, *(root / name for name in whole)]:
        if path.is_file() and os.path.realpath(path) == str(path):
            yield path
