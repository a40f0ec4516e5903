"""The folder of one run: the names of its files, its lock, its status, its origin and pins.

`RunDir` is a cheap handle: several may exist for one folder. Readers need no lock; only the process inside
`lock()` writes. A run whose status is alive while no process holds its lock is dead. A child keeps
lineage.json. Its parent keeps pins.json, whose checkpoints retention never deletes.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import SkipValidation, TypeAdapter

from mission_gym.data import LeafKind
from mission_gym.errors import DiskError, RunGoneError, RunStateError, UsageError
from mission_gym.store import PID, lock
from mission_gym.store.checkpoints import recover
from mission_gym.store.files import (
    Count,
    Record,
    Str,
    check_plain,
    disk_errors,
    read_validated,
    remove_leftovers,
    sync_folder,
    write_json,
    write_synced,
)

# Reading a status takes the lock for some microseconds, which must not look like another writer.
_LOCK_WAIT_S = 0.1
RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_RESERVE_BYTES = 1 << 16
STALL_S = 20.0  # without a step; readers then show how long nothing has moved
_STATUS_BYTES = 1 << 20  # at most: lists read the status of every run
_ENDED = ("done", "stopped", "failed")
# Everything that we write into a run, by name, except for checkpoints/, env/, eval/ and files of sinks.
OWN_NAMES = (
    "config.yaml", "env-files.json", "plan.json", "lineage.json", "pins.json", "env-output.txt",
    "repro-env*-episode*.json", "timeline.html", "report.html", "baselines.json", "learning.gif",
    "learning.mp4", "step_*.mp4", ".reserve", ".pins-lock", "status.json", ".lock",
)  # fmt: skip
EVAL_NAMES = "step_*.json"
_PIN_WAIT_S = 10.0


class View(Enum):
    """The views of a status. A field of `Status` names those that show it."""

    LIST = "runs list"
    SHOW = "runs show"
    NUMBER = "dashboard, as a number"
    TEXT = "dashboard, as text"


class Verdict(Record):
    """The bottleneck of a run, the evidence, and advice."""

    bound: Str
    evidence: Str
    advice: list[Str]


class FailureCount(Record):
    """Failures of one kind: the text and the place of the first one, and its repro bundle in the run."""

    text: Str
    place: Str
    count: Count
    repro: Str | None = None


class Status(Record):
    """The fields of status.json. Readers rely on the types, except for those that skip validation."""

    created: Annotated[float, View.SHOW, View.NUMBER] = 0.0  # Unix time
    heartbeat: Annotated[float | None, SkipValidation, View.NUMBER] = None  # Unix time of the last write
    pid: Annotated[int | None, SkipValidation, View.NUMBER] = None
    state: Annotated[str | None, View.LIST, View.TEXT] = None
    cause: Annotated[Str | None, View.SHOW, View.TEXT] = None  # of the state
    phase: Annotated[str | None, SkipValidation, View.TEXT] = None
    phase_since: Annotated[float | None, SkipValidation, View.NUMBER] = None  # Unix time
    phase_done: Annotated[int | None, SkipValidation, View.NUMBER] = None  # episodes of an evaluation
    phase_total: Annotated[int | None, SkipValidation, View.NUMBER] = None
    phase_eta_s: Annotated[float | None, SkipValidation, View.NUMBER] = None
    moved_at: Annotated[float | None, SkipValidation, View.NUMBER] = None  # Unix time of the last step
    step: Annotated[Count | None, View.LIST, View.NUMBER] = None
    total: Annotated[Count | None, View.SHOW, View.NUMBER] = None
    updates: Annotated[Count | None, View.SHOW] = None
    gradient_steps: Annotated[Count | None, View.SHOW] = None
    episodes: Annotated[Count | None, View.SHOW] = None
    env_failures: Annotated[Count | None, View.SHOW, View.NUMBER] = None
    worker_restarts: Annotated[Count | None, View.SHOW] = None
    failures: Annotated[list[FailureCount] | None, View.SHOW] = None  # the most frequent first
    fps: Annotated[float | None, View.LIST, View.NUMBER] = None
    train_fps: Annotated[float | None, View.SHOW, View.NUMBER] = None
    predicted_fps: Annotated[float | None, View.SHOW, View.NUMBER] = None
    now_fps: Annotated[float | None, SkipValidation, View.NUMBER] = None
    eta_s: Annotated[float | None, SkipValidation, View.NUMBER] = None
    return_mean: Annotated[float | None, View.LIST, View.NUMBER] = None
    outcomes: Annotated[dict[str, float | None] | None, SkipValidation] = None
    best_step: Annotated[int | None, SkipValidation, View.NUMBER] = None
    stage: Annotated[dict[str, Any] | None, SkipValidation, View.SHOW] = None  # number, of, name
    verdict: Annotated[Verdict | None, View.SHOW] = None
    lost_rows: Annotated[dict[str, int] | None, SkipValidation] = None  # by sink
    lost_events: Annotated[int | None, SkipValidation] = None  # events that the terminal did not show


def list_fields(view: View) -> tuple[str, ...]:
    """The names of the status fields that a view shows."""
    return tuple(name for name, field in Status.model_fields.items() if view in field.metadata)


_STATUS = TypeAdapter(Status)


def slug(env_id: str) -> str:
    """Make a run name of an id: `mission_gym/Capture-v0` -> `capture-v0`, `pkg:Env` -> `pkg-env`."""
    return re.sub(r"[^a-z0-9._-]+", "-", env_id.rpartition("/")[2].lower()).strip("-.") or "run"


class RunDir:
    """A run directory; the attributes name its files, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path = Path(os.path.abspath(path))
        self.name = path.name
        self.config_yaml = path / "config.yaml"
        self.env = path / "env"
        self.env_files_json = path / "env-files.json"  # keyword -> copy, in env/, of the file that it names
        self.plan_json = path / "plan.json"
        self.status_json = path / "status.json"
        self.metrics_jsonl = path / "metrics.jsonl"
        self.progress_csv = path / "progress.csv"
        self.monitor_csv = path / "monitor.csv"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.eval = path / "eval"
        self.baselines_json = path / "baselines.json"  # results of a demo's baselines
        self.lineage_json = path / "lineage.json"
        self.pins_json = path / "pins.json"
        self.log_txt = path / "log.txt"
        self.env_output = path / "env-output.txt"  # of environments, with the tracebacks of their failures
        self._lock_path = path / ".lock"
        self._reserve = path / ".reserve"
        self._held: int | None = None  # descriptor of the lock, if this process holds it

    @classmethod
    def create(cls, runs_dir: Path, name: str, now: datetime | None = None) -> RunDir:
        """Make the folder of a new run; UsageError if it can't be written."""
        now = now or datetime.now()
        run = cls(make_stamped(runs_dir, name, now))
        try:
            with disk_errors(run.path):
                run._lock_path.touch(0o600)
            run.write_status(state="starting", created=now.timestamp())
        except BaseException as error:
            shutil.rmtree(run.path, ignore_errors=True)
            if isinstance(error, DiskError):
                raise UsageError(f"{error}, or give another folder [--runs-dir]") from error
            raise
        return run

    @property
    def exists(self) -> bool:
        """Whether the folder is a run: every run starts with a status, and then gets a config."""
        return os.path.isfile(self.status_json) or os.path.isfile(self.config_yaml)

    @property
    def created(self) -> float:
        """Unix time of the start, 0 if the status lost it."""
        return float(self._stored_status().get("created") or 0.0)

    @property
    def is_locked(self) -> bool:
        """Whether a process writes the run."""
        return lock.is_held(self._lock_path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for writing and repair it after a kill; RunStateError if another process holds it."""
        self.check_plain()
        with lock.hold(self._lock_path, wait_s=_LOCK_WAIT_S) as self._held:
            try:
                recover(self.checkpoints)
                remove_leftovers(self.path, OWN_NAMES)
                remove_leftovers(self.eval, (EVAL_NAMES,))
                yield
            finally:
                with suppress(OSError):
                    self._reserve.unlink(missing_ok=True)
                self._held = None

    def check_plain(self) -> None:
        """Refuse to write to a run with links, which may lead to any file of the user; RunStateError."""
        check_plain(self.path, ("checkpoints", "eval", "tensorboard"))

    def check_not_moved(self) -> None:
        """Raise RunGoneError if the folder that this process locked was moved or removed."""
        if self._held is None:
            return
        try:
            is_there = os.path.samestat(os.stat(self._lock_path), os.fstat(self._held))
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
        if not is_there:
            raise RunGoneError(
                f"{self.path} was moved or removed during the run; nothing more is written there; if it was "
                "moved, continue it with `mission-gym resume NEW_PATH`"
            )

    def keep_reserve(self) -> None:
        """Reserve some bytes, so that the final status can be written to a full disk."""
        with suppress(OSError):
            write_synced(self._reserve, os.urandom(_RESERVE_BYTES), durable=False)

    def write_status(self, *, durable: bool = True, **fields: Any) -> None:
        """Merge fields, pid and heartbeat into the status; None removes a field. RunGoneError."""
        self.check_not_moved()
        pid = int(os.environ.get(PID, 0)) or os.getpid()
        merged = {**self._stored_status(), **fields, "pid": pid, "heartbeat": time.time()}
        kept = {name: value for name, value in merged.items() if value is not None}
        try:
            write_json(self.status_json, kept, durable=durable)
        except DiskError:
            if fields.get("state") not in _ENDED or not self._reserve.exists():
                raise
            self._reserve.unlink()
            write_json(self.status_json, kept, durable=durable)

    def read_status(self) -> dict[str, Any]:
        """Return the status; RunStateError if it is damaged.

        A run whose process was killed is `failed`, cause `the process was killed`.
        """
        status = self._checked_status()
        if status.get("state") in ("starting", "running") and not self.is_locked:
            status = self._checked_status()  # it may have ended in between
            if status.get("state") in ("starting", "running"):
                status |= {"state": "failed", "cause": "the process was killed"}
        return status

    def _stored_status(self) -> dict[str, Any]:
        try:
            return self._checked_status()
        except RunStateError:  # a heartbeat lost in a power cut must not cost the run
            return {}

    def _checked_status(self) -> dict[str, Any]:
        if not os.path.exists(self.status_json):
            return {}
        status = read_validated(self.status_json, _STATUS, _STATUS_BYTES)
        return status.model_dump(exclude_unset=True, warnings=False)


def make_stamped(runs_dir: Path, name: str, now: datetime) -> Path:
    """Make the folder `<name>-<YYYYMMDD-HHMMSS>`, with -2, -3 ... if it exists; UsageError if that fails."""
    if not RUN_NAME.fullmatch(name) or name == "latest":
        raise UsageError(
            f"run name {name!r} is not allowed; use letters, digits, '_', '-' and '.', not '-' or '.' in "
            "front, and not 'latest' [--run-name]"
        )
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        path = _make_folder(runs_dir, f"{name}-{now:%Y%m%d-%H%M%S}")
        sync_folder(runs_dir)
    except OSError as error:
        raise UsageError(
            f"can't make a run in {runs_dir}: {error.strerror or error}; give another folder [--runs-dir]"
        ) from error
    return path


def _make_folder(runs_dir: Path, stamped: str) -> Path:
    path, number = runs_dir / stamped, 1
    while True:
        try:
            path.mkdir()  # decides between processes that start in the same second
            return path
        except FileExistsError:
            number += 1
            path = runs_dir / f"{stamped}-{number}"


@dataclass(frozen=True, slots=True)
class InferredLeaf:
    """The layout of a leaf whose space was ambiguous, so its values decided: fields of its LeafSpec."""

    kind: LeafKind
    nvec: tuple[Count, ...]
    start: tuple[int, ...]
    channels_last: bool
    open_ended: bool


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin of a run; the three `parent` fields are None for a run from scratch."""

    env_signature: Str
    parent: Str | None = None  # name of the run
    parent_path: Str | None = None
    parent_step: Count | None = None
    folder: Str = ""  # working directory at the start, where modules of the user may be
    readings: dict[Str, InferredLeaf] = field(default_factory=dict)  # by leaf


_LINEAGE = TypeAdapter(Lineage)
_PINS = TypeAdapter(dict[Count, list[Str]])


def write_lineage(run: RunDir, lineage: Lineage) -> None:
    """Write lineage.json."""
    write_json(run.lineage_json, asdict(lineage))


def read_lineage(run: RunDir) -> Lineage:
    """Read lineage.json; RunStateError if it is missing or damaged."""
    return read_validated(run.lineage_json, _LINEAGE)


def pin(run: RunDir, step: int, child: str) -> None:
    """Keep checkpoint `step` of `run` for the run named `child`; several branches may call this at once."""
    run.check_plain()
    with lock.hold(run.path / ".pins-lock", wait_s=_PIN_WAIT_S):
        pins = read_pins(run)
        children = [*pins.get(step, []), child]
        write_json(run.pins_json, pins | {step: sorted(set(children))})


def read_pins(run: RunDir) -> dict[int, list[str]]:
    """Return the pinned steps of `run`, each with the names of the runs that started from it."""
    return read_validated(run.pins_json, _PINS) if run.pins_json.exists() else {}
