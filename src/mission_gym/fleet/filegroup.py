"""The group of a job file: a new one, or the one that the same file goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mission_gym.errors import ConfigError
from mission_gym.fleet.drive import ask
from mission_gym.fleet.queue import Queue
from mission_gym.store.groups import GroupDir, JobRequest, Kind, list_groups


def find_group_of(name: str, runs_dir: Path, kind: Kind = "jobs") -> GroupDir | None:
    """The newest group of a name in a folder, as a job file or a sweep made it."""
    for group in reversed(list_groups(runs_dir)):
        record = group.read()
        if (record.kind, record.name) == (kind, name):
            return group
    return None


def open_group(
    queue: Queue, name: str, runs_dir: Path, requests: Sequence[JobRequest], *, trust: bool
) -> tuple[GroupDir, bool]:
    """The group of a file, put into the queue, and whether it is a new one; ConfigError for jobs that were
    changed since they began. trust: also go on with one that was not made here."""
    group = find_group_of(name, runs_dir)
    if group is None:
        return queue.make_group(runs_dir, name, "jobs", requests), True
    if not trust:
        queue.check_own(group)
    go_on(group, requests)
    queue.register(group)
    return group, False


def go_on(group: GroupDir, requests: Sequence[JobRequest]) -> None:
    """Add what is new, try again what failed or was stopped; ConfigError for what changed since it began."""
    before = group.read_jobs()
    problems, new, again = [], [], []
    for request in requests:
        job = before.get(request.name)
        has_begun = job is not None and (job.run is not None or job.state == "starting")
        if job is None:
            new.append(request)
        elif has_begun and _list_values(job.request) != _list_values(request):
            problems.append(
                f"job {request.name!r} was changed since it began in {group.name}; give it another name, or"
                " the file another `name:`"
            )
        elif job.state in ("failed", "stopped"):
            again.append(request)
        elif job.state == "queued" and job.request != request:
            new.append(request)
    if problems:
        raise ConfigError(problems)
    group.add([*new, *again])  # as it is asked for now: --trust, folder, Python, variables
    ask(group, [each.name for each in again], "resume")


def _list_values(request: JobRequest) -> list[str]:
    """What a job asks for, wherever its file lies."""
    return [word for word in request.arguments if not word.startswith(("--via=", "--trust"))]
