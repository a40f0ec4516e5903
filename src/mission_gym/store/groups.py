"""The folder of a group: several runs with one question. Its runs lie beside it, in the runs folder.

    <name>-<YYYYMMDD-HHMMSS>/
      group.json       name, kind, runs and the result; replaced as a whole
      journal.jsonl    what was asked for and what happened, job by job; append-only: the truth
      jobs/            of each job its log, its lock, the run that it announced and its end

A job is a request for a run. Its state is the fold of its rows in the journal. Whether it lives shows its
lock, which its process holds: a dead process holds none, and none can be started beside a living one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from mission_gym.errors import RunStateError
from mission_gym.store import lock
from mission_gym.store.announce import read_announced
from mission_gym.store.checked import Count, Record, Str, check, read_checked
from mission_gym.store.files import disk_errors, write_json
from mission_gym.store.journal import Journal
from mission_gym.store.resolve import match_name
from mission_gym.store.rundir import RunDir, make_stamped

Kind = Literal["seeds", "jobs", "train", "sweep"]
State = Literal["queued", "starting", "running", "done", "failed", "stopped"]
ENDED = ("done", "failed", "stopped")
Point = Literal["best", "last"]


class JobRequest(BaseModel):
    """What is asked for: a command line, where and for whom it runs, and what it waits for."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=200)]
    variant: str  # jobs of one variant differ in their seeds alone
    arguments: tuple[Str, ...]  # behind `train`, or behind `branch RUN@POINT`
    folder: Str  # where it was asked for
    python: Str
    variables: dict[str, Str] = {}
    parent: str | None = None  # the job that it branches from
    point: Point = "best"
    seed: Count | None = None
    priority: int = 0
    retries: Count = 1
    cores: Annotated[int, Field(ge=1)] = 1  # at least, as its flags ask for
    uses_gpu: bool = False
    cuda_mps: Literal["off", "on", "auto"] = "auto"
    cluster: Str | None = None  # the Ray cluster that it runs on: its address, "" for one of our own


class _Row(BaseModel):
    name: str
    time: float = 0.0  # by the wall clock, which may jump: to be read, not to decide by


class _Added(BaseModel):
    event: Literal["added"]
    job: JobRequest
    time: float = 0.0


class _Started(_Row):
    event: Literal["started"]
    cores: Count = 1
    log_bytes: Count = 0
    under_mps: bool = False
    node: Str = ""


class _Announced(_Row):
    event: Literal["run"]
    run: Str


class _Ended(_Row):
    event: Literal["ended"]
    state: Literal["queued", "done", "failed", "stopped"]  # queued: to be tried again
    cause: Str = ""
    unborn: bool = False  # its supervisor died before there was a process


class _Asked(_Row):
    event: Literal["asked"]
    what: Literal["stop", "resume"]


_EVENTS = TypeAdapter(
    list[Annotated[_Added | _Started | _Announced | _Ended | _Asked, Field(discriminator="event")]]
)


@dataclass(frozen=True, slots=True)
class Job:
    """Where one job stands, as its group's journal tells it."""

    request: JobRequest
    state: State = "queued"
    attempts: int = 0
    tries: int = 0  # attempts since it was asked for last
    cores: int = 0  # its share of the machine
    under_mps: bool = False  # whether it shares the GPU through CUDA MPS
    node: str = ""  # of its cluster, where it was started last
    log_bytes: int = 0  # of its log when the last attempt began
    run: Path | None = None
    cause: str = ""
    stop_asked: bool = False

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


class Estimate(Record):
    """What the runs of one variant came to."""

    iqm: float | None
    low: float | None
    high: float | None
    seeds: Count


class GroupRecord(Record):
    """What is read of a group.json by name."""

    name: Str
    kind: Kind
    runs: list[Str]
    created: float = 0.0
    iqm: float | None = None
    low: float | None = None
    high: float | None = None
    best_run: Str | None = None
    variants: dict[Str, Estimate] = Field(default_factory=dict)


_GROUP = TypeAdapter(GroupRecord)


@dataclass(frozen=True)
class GroupDir:
    """A cheap handle: several may exist for one folder, in any process."""

    path: Path
    journal: Journal = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(os.path.abspath(self.path)))
        object.__setattr__(self, "journal", Journal(self.path / "journal.jsonl"))

    @classmethod
    def create(
        cls,
        runs_dir: Path,
        name: str,
        kind: Kind,
        requests: Iterable[JobRequest],
        claim: Callable[[GroupDir], None] = lambda group: None,
    ) -> GroupDir:
        """Make the folder of a new group with its jobs; UsageError where it can't be written. claim: is
        called before others can see it."""
        group = cls(make_stamped(runs_dir, name, datetime.now()))
        with disk_errors(group.path):
            (group.path / "jobs").mkdir()
        group.add(requests)
        claim(group)
        group.write(name=name, kind=kind, runs=[], created=time.time(), iqm=None, low=None, high=None)
        return group

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def group_json(self) -> Path:
        return self.path / "group.json"

    @property
    def exists(self) -> bool:
        return os.path.isfile(self.group_json)

    def log(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.log"

    def lock(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.lock"

    def run_file(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.run"

    def end_file(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.end"

    def is_alive(self, name: str) -> bool:
        """Whether the process of a job lives."""
        return lock.is_held(self.lock(name))

    def read_pid(self, job: Job) -> int | None:
        """The process of a job's last attempt, as it signed its lock; None if there never was one."""
        try:
            words = self.lock(job.name).read_text().split()
        except OSError:
            return None
        is_own = len(words) == 2 and words[1] == str(job.attempts) and words[0].isdigit()
        return int(words[0]) if is_own else None

    def is_running(self, job: Job) -> bool:
        """Whether the last attempt of a living job has begun to train."""
        if job.run is None:
            return False
        try:
            status = RunDir(job.run).read_status()
        except RunStateError:
            return False
        return status.get("pid") == self.read_pid(job) and status.get("state") != "starting"

    def write(self, **fields: Any) -> None:
        """Merge fields into group.json."""
        before = read_checked(self.group_json, _GROUP).model_dump() if self.exists else {}
        write_json(self.group_json, before | fields)

    def read(self) -> GroupRecord:
        """group.json; RunStateError if it is missing or damaged."""
        return read_checked(self.group_json, _GROUP)

    def add(self, requests: Iterable[JobRequest]) -> None:
        """Ask for jobs; one of a name that there is takes its place, and keeps what was done for it."""
        rows = [{"event": "added", "job": each.model_dump(), "time": time.time()} for each in requests]
        self.journal.append(rows)

    def note(self, event: str, name: str, **fields: Any) -> None:
        """Add a row about a job to the journal."""
        self.journal.append([{"event": event, "name": name, "time": time.time(), **fields}])

    def read_jobs(self) -> dict[str, Job]:
        """All jobs by name, in the order in which they were asked for; RunStateError if that is damaged."""
        jobs: dict[str, Job] = {}
        for row in check(self.journal.path, self.journal.read(), _EVENTS):
            name = row.job.name if isinstance(row, _Added) else row.name
            if not isinstance(row, _Added) and name not in jobs:
                raise RunStateError(
                    f"{self.journal.path} is damaged: nobody asked for job {name!r}; restore it from a copy"
                )
            match row:
                case _Added():
                    known = jobs.get(name)
                    has_begun = known is not None and known.attempts > 0
                    jobs[name] = replace(known, request=row.job) if known and has_begun else Job(row.job)
                case _Started():
                    job = jobs[name]
                    jobs[name] = replace(
                        job, state="starting", cause="", cores=row.cores, attempts=job.attempts + 1,
                        tries=job.tries + 1, log_bytes=row.log_bytes, under_mps=row.under_mps,
                        node=row.node,
                    )  # fmt: skip
                case _Announced():
                    jobs[name] = replace(jobs[name], run=Path(row.run))
                case _Ended():
                    job, fewer = jobs[name], int(row.unborn)
                    jobs[name] = replace(
                        job, state=row.state, cause=row.cause, attempts=job.attempts - fewer,
                        tries=job.tries - fewer, stop_asked=job.stop_asked and row.state == "queued",
                    )  # fmt: skip
                case _Asked(what="stop"):
                    jobs[name] = replace(jobs[name], stop_asked=not jobs[name].has_ended)
                case _Asked():
                    if jobs[name].state in ("failed", "stopped"):
                        jobs[name] = replace(jobs[name], state="queued", tries=0, cause="")
        return {name: self._look(job) for name, job in jobs.items()}

    def _look(self, job: Job) -> Job:
        """A run that was announced and not yet told in the journal, as its supervisor died."""
        if job.run is None and job.attempts:
            return replace(job, run=read_announced(self.run_file(job.name)))
        return job


def list_groups(runs_dir: Path) -> list[GroupDir]:
    """All groups in a folder, the newest last; damaged ones are left out."""
    try:
        groups = [GroupDir(path) for path in runs_dir.iterdir()] if os.path.isdir(runs_dir) else []
    except OSError as error:
        raise RunStateError(f"can't read {runs_dir}: {error.strerror or error}") from error
    dated = []
    for group in groups:
        if group.exists:
            try:
                dated.append((group.read().created, len(group.name), group.name, group))
            except RunStateError:
                continue
    return [group for *_, group in sorted(dated, key=lambda item: item[:3])]


def find_group(text: str, runs_dir: Path) -> tuple[GroupDir, str]:
    """The group that the user typed, as a path or as a name, and a note to say aloud; RunStateError."""
    if (by_path := GroupDir(Path(text))).exists:
        return by_path, ""
    groups = {group.name: group for group in list_groups(runs_dir)}
    if not groups:
        raise RunStateError(
            f"no group {text!r}: there are no groups in {runs_dir}; `mission-gym jobs run` and"
            " `mission-gym train --seeds` make one"
        )
    remedy = f"there are {', '.join(list(groups)[-12:])}"
    found, note = match_name(text, list(groups), "group", f" in {runs_dir}", remedy)
    return groups[found], note
