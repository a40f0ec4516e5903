"""The groups of a runs folder: their result, their runs by name, and where each of their jobs stands.

Jobs are those of a group's journal, and whether one lives shows its lock. Paths in a journal are those of
whoever wrote it: a run counts by its name, as the index knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.errors import MissionGymError
from mission_gym.report.dashboard.contained import REFUSED, is_contained
from mission_gym.report.dashboard.stamps import Stamp, stamp
from mission_gym.report.groups import describe_jobs
from mission_gym.store.groups import GroupDir, GroupRecord, Job

_NUM_LETTERS = 300  # of a cause
Find = Callable[[str], Mapping[str, Any] | None]  # the row of a run, by its name


class _Kept(NamedTuple):
    stamps: tuple[Stamp, ...]
    record: GroupRecord
    jobs: dict[str, Job]


class Groups:
    """What was read of each group, read again when its files change."""

    def __init__(self) -> None:
        self._kept: dict[Path, _Kept] = {}

    def describe(self, path: Path, find: Find) -> dict[str, Any]:
        """A group as a page shows it; one that can't be read says why."""
        if not is_contained(path, "jobs"):
            return _tell_problem(path, "refused", REFUSED)
        try:
            kept = self._read(GroupDir(path))
            jobs = _describe_jobs(GroupDir(path), kept.jobs, find)
        except (MissionGymError, OSError) as error:
            self._kept.pop(path, None)
            return _tell_problem(path, "damaged", str(error))
        shown = kept.record.model_dump(include={"kind", "iqm", "low", "high", "created"})
        return {
            "name": path.name,
            **shown,
            "runs": [Path(run).name for run in kept.record.runs],
            "jobs": jobs,
            "problem": "",
        }

    def _read(self, group: GroupDir) -> _Kept:
        stamps = (stamp(group.group_json), stamp(group.journal.path), stamp(group.path / "jobs"))
        kept = self._kept.get(group.path)
        if kept is None or kept.stamps != stamps:
            kept = self._kept[group.path] = _Kept(stamps, group.read(), group.read_jobs())
        return kept


def _tell_problem(path: Path, kind: str, problem: str) -> dict[str, Any]:
    unknown = dict.fromkeys(("iqm", "low", "high", "created"))
    return {"name": path.name, "kind": kind, **unknown, "runs": [], "jobs": [], "problem": problem}


def _describe_jobs(group: GroupDir, jobs: Mapping[str, Job], find: Find) -> list[dict[str, Any]]:
    """The jobs in the order in which they start: those at work, those that wait by priority, those that have
    ended."""
    described = describe_jobs(group, jobs, lambda path: find(path.name) or {})
    found = []
    for row, job in zip(described, jobs.values(), strict=True):
        run = job.run.name if job.run is not None else None
        parent = jobs.get(job.request.parent or "")
        waits_for = parent.name if parent is not None and not parent.has_ended else None
        found.append(
            {key: row[key] for key in ("name", "state", "cores", "attempts")}
            | {
                "run": run if run and find(run) else None,
                "cause": (row["cause"] or "").partition("\n")[0][:_NUM_LETTERS],
                "priority": job.request.priority,
                "waits_for": waits_for if row["state"] == "queued" else None,
            }
        )
    ranks = {"running": 0, "starting": 0, "queued": 1}

    def rank(job: dict[str, Any]) -> tuple[int, int]:
        return ranks.get(job["state"], 2), -job["priority"] if job["state"] == "queued" else 0

    return sorted(found, key=rank)
