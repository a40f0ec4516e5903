"""The folder of a group: several runs with one question. The runs themselves are next to it.

    <name>-<YYYYMMDD-HHMMSS>/
      group.json       name, kind, runs and the result; replaced as a whole
      journal.jsonl    requests and events of all jobs; append-only, the source of truth
      jobs/            for each job its log, its lock, the path of its run and its exit code

A job is a request for a run. Its state is the fold of its rows in the journal. Its process holds a lock, so a
job is alive if the lock is held, and no second process can start. The process announces the path of its run
and its exit code in files that environment variables name: a later supervisor can't wait for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from mission_gym.errors import DiskError, RunStateError
from mission_gym.store import END_FILE, RUN_FILE, lock
from mission_gym.store.files import Count, Record, Str, disk_errors, read_validated, validate, write_json
from mission_gym.store.lock import Holder
from mission_gym.store.resolve import match_name
from mission_gym.store.rundir import RunDir, make_stamped
from mission_gym.store.tables import Journal

Kind = Literal["seeds", "jobs", "train", "sweep"]
State = Literal["queued", "starting", "running", "done", "failed", "stopped"]
ENDED = ("done", "failed", "stopped")
Point = Literal["best", "last"]


class JobRequest(BaseModel):
    """A requested run: its command line, where it runs, its resources and the job that it waits for."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=200)]
    variant: str  # jobs of one variant differ only in their seeds
    arguments: tuple[Str, ...]  # after `train`, or after `branch RUN@POINT`
    folder: Str  # working directory of the request
    python: Str
    variables: dict[str, Str] = {}
    parent: str | None = None  # job that it branches from
    point: Point = "best"
    seed: Count | None = None
    priority: int = 0
    retries: Count = 1
    cores: Annotated[int, Field(ge=1)] = 1  # at least, by its flags
    uses_gpu: bool = False
    cuda_mps: Literal["off", "on", "auto"] = "auto"
    cluster: Str | None = None  # address of its Ray cluster, "" to start one
    trust: bool = False  # allow the code that it names


class _JobEvent(BaseModel):
    name: str
    time: float = 0.0  # wall clock, which may jump: for readers only


class _Added(BaseModel):
    event: Literal["added"]
    job: JobRequest
    time: float = 0.0


class _Started(_JobEvent):
    event: Literal["started"]
    cores: Count = 1
    log_bytes: Count = 0
    under_mps: bool = False
    node: Str = ""


class _Announced(_JobEvent):
    event: Literal["run"]
    run: Str


class _Ended(_JobEvent):
    event: Literal["ended"]
    state: Literal["queued", "done", "failed", "stopped"]  # queued: it is tried again
    cause: Str = ""
    never_started: bool = False  # its supervisor died before the process started


class _Requested(_JobEvent):
    event: Literal["asked"]
    what: Literal["stop", "resume"]


_EVENTS = TypeAdapter(
    list[Annotated[_Added | _Started | _Announced | _Ended | _Requested, Field(discriminator="event")]]
)


@dataclass(frozen=True, slots=True)
class Job:
    """The state of one job according to its group's journal."""

    request: JobRequest
    state: State = "queued"
    attempts: int = 0
    tries: int = 0  # attempts since the last request
    cores: int = 0  # number of cores it was given
    under_mps: bool = False  # it shares the GPU through CUDA MPS
    node: str = ""  # of its cluster, on which it was last started
    log_bytes: int = 0  # size of its log when the last attempt started
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
    """The result of the runs of one variant."""

    iqm: float | None
    low: float | None  # of the interquartile mean; None if no interval can be given
    high: float | None
    seeds: Count
    mean: float | None = None
    values: list[float] = Field(default_factory=list)


class GroupRecord(Record):
    """group.json."""

    name: Str
    kind: Kind
    runs: list[Str]
    created: float = 0.0
    iqm: float | None = None
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    values: list[float] = Field(default_factory=list)
    best_run: Str | None = None
    variants: dict[Str, Estimate] = Field(default_factory=dict)


_GROUP = TypeAdapter(GroupRecord)
_RUN = TypeAdapter(dict[Str, Str])
_END = TypeAdapter(dict[Str, Count])


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
        """Make the folder of a new group with its jobs; UsageError if it can't be written.

        claim: called before other processes can see the group.
        """
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
        """Return whether the process of a job is alive."""
        if not lock.is_held(self.lock(name)):
            return False
        holder = lock.read_holder(self.lock(name))  # a process that it started may hold its lock, too
        return holder is None or not holder.is_here or holder.is_alive

    def find_process(self, job: Job) -> Holder | None:
        """Return the process of the last attempt, as its lock names it; None if no process was started."""
        holder = lock.read_holder(self.lock(job.name))
        return holder if holder is not None and holder.note == str(job.attempts) else None

    def read_pid(self, job: Job) -> int | None:
        """Return the pid of the last attempt; None if no process was started."""
        holder = self.find_process(job)
        return None if holder is None else holder.pid

    def is_running(self, job: Job) -> bool:
        """Return whether the last attempt of a live job has started to train."""
        if job.run is None:
            return False
        try:
            status = RunDir(job.run).read_status()
        except RunStateError:
            return False
        return status.get("pid") == self.read_pid(job) and status.get("state") != "starting"

    def write(self, **fields: Any) -> None:
        """Merge fields into group.json."""
        before = read_validated(self.group_json, _GROUP).model_dump() if self.exists else {}
        write_json(self.group_json, before | fields)

    def read(self) -> GroupRecord:
        """Read group.json; RunStateError if it is missing or damaged."""
        return read_validated(self.group_json, _GROUP)

    def add(self, requests: Iterable[JobRequest]) -> None:
        """Request jobs; a job with a known name replaces its request and keeps its state."""
        rows = [{"event": "added", "job": each.model_dump(), "time": time.time()} for each in requests]
        self.journal.append(rows)

    def note(self, event: str, name: str, **fields: Any) -> None:
        """Append an event of a job to the journal."""
        self.journal.append([{"event": event, "name": name, "time": time.time(), **fields}])

    def read_jobs(self) -> dict[str, Job]:
        """Return all jobs by name, in the order of their requests; RunStateError if the journal is
        damaged."""
        jobs: dict[str, Job] = {}
        for row in validate(self.journal.path, self.journal.read(), _EVENTS):
            name = row.job.name if isinstance(row, _Added) else row.name
            if not isinstance(row, _Added) and name not in jobs:
                raise RunStateError(
                    f"{self.journal.path} is damaged: job {name!r} was never added; restore it from a copy"
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
                    job, fewer = jobs[name], int(row.never_started)
                    jobs[name] = replace(
                        job, state=row.state, cause=row.cause, attempts=job.attempts - fewer,
                        tries=job.tries - fewer, stop_asked=job.stop_asked and row.state == "queued",
                    )  # fmt: skip
                case _Requested(what="stop"):
                    jobs[name] = replace(jobs[name], stop_asked=not jobs[name].has_ended)
                case _Requested():
                    if jobs[name].state in ("failed", "stopped"):
                        jobs[name] = replace(jobs[name], state="queued", tries=0, cause="")
        return {name: self._add_announced_run(job) for name, job in jobs.items()}

    def _add_announced_run(self, job: Job) -> Job:
        """Add a run that was announced but is not in the journal because the supervisor died."""
        if job.run is None and job.attempts:
            return replace(job, run=read_announced(self.run_file(job.name)))
        return job


def announce_run(path: Path) -> None:
    """Write a new run's path to the file that the starter named; child processes do not inherit the name."""
    file = os.environ.pop(RUN_FILE, None)
    if file is not None:
        write_json(Path(file), {"run": str(path)})


def read_announced(file: Path) -> Path | None:
    """Return the run that was announced in a file; None if there is none yet or the file is damaged."""
    with suppress(RunStateError, KeyError):
        return Path(read_validated(file, _RUN)["run"])
    return None


def announce_end(code: int) -> None:
    """Write the exit code to the file that the starter named; it is lost if the disk refuses it."""
    file = os.environ.get(END_FILE)
    if file is not None:
        with suppress(DiskError):
            write_json(Path(file), {"pid": os.getpid(), "code": code})


def read_code(file: Path, pid: int | None) -> int | None:
    """Return the exit code that process `pid` announced in a file; None if it was killed."""
    with suppress(RunStateError, KeyError):
        end = read_validated(file, _END)
        return end["code"] if end["pid"] == pid else None
    return None


def list_groups(runs_dir: Path) -> list[GroupDir]:
    """List all groups in a folder, the newest last; damaged ones are left out."""
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
    """Find a group by path or name; also return a note to print. RunStateError."""
    if (by_path := GroupDir(Path(text))).exists:
        return by_path, ""
    groups = {group.name: group for group in list_groups(runs_dir)}
    remedy = f"there are {', '.join(list(groups)[-12:])}" if groups else "`mission-gym jobs run` starts one"
    found, note = match_name(text, list(groups), "group", f" in {runs_dir}", remedy)
    return groups[found], note
