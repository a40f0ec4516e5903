"""The files of a sweep in its group's folder, in addition to those of every group.

study.log     Optuna's journal of trials with their parameters and two values; the source of truth
sweep.json    the question and the results so far; derived from the two journals
best.yaml     the settings that were best on fresh seeds, valid as --config
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from mission_gym.store import lock
from mission_gym.store.files import Count, Record, Str, read_validated, write_json
from mission_gym.store.groups import GroupDir, Job

STUDY, BEST, SWEEP, _LOCK = "study.log", "best.yaml", "sweep.json", ".sweep-lock"
_RETEST = "retest-"
OF_A_SWEEP = (STUDY, f"{STUDY}.lock", BEST, SWEEP, _LOCK)
DEFAULT = "default"  # source of the first trial: the settings without a sweep
Value = bool | int | float | str | None
Values = dict[str, Any]  # by field name
_Seeds = Annotated[list[Count], Field(min_length=1)]


class Axis(BaseModel):
    """A field to search: a range from low to high, or choices."""

    path: Annotated[str, Field(pattern=r"^\w+\.\w+$")]
    low: int | float = 0
    high: int | float = 0
    scale: Literal["linear", "log", "gap", "power"] = "linear"
    choices: list[Value] = Field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.split(".")[1]

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def holds(self, value: Any) -> bool:
        """Return whether the search space contains this value."""
        if self.choices:
            return value in self.choices
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high


class StartingPoint(BaseModel):
    """Settings that are tried before the search samples its own."""

    source: Str
    values: Values  # of the searched fields
    given: Values  # passed to its runs; empty if they have these values by default


class Question(BaseModel):
    """The question of a sweep."""

    asked: Values  # as the user gave them, by flag name
    values: Values  # passed to all runs: `asked`, and the sizes that are equal for all
    over: Str
    axes: list[Axis]
    starts: list[StartingPoint]  # the default first
    measure: Str  # ranked by its lower bound: the return, or the main outcome
    trials: Count | None
    budget_s: float | None
    seeds: _Seeds  # of each trial
    retest: Count
    retest_seeds: _Seeds  # for training the best again; disjoint from `seeds`
    pruner: Literal["none", "median"] = "none"
    folder: Str  # working directory of the request


class TrialRow(Record):
    """A trial in sweep.json."""

    number: Count
    source: Str
    state: Literal["running", "complete", "failed", "pruned"]
    values: Values
    score: float | None = None
    seconds: float | None = None
    cause: Str = ""


class Candidate(Record):
    """Settings that were trained again on fresh seeds."""

    trial: Count
    source: Str
    values: Values
    iqm: float | None = None
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    scores: list[float] = Field(default_factory=list)
    seeds: Count = 0  # that finished training
    seconds: float | None = None
    causes: list[Str] = Field(default_factory=list)  # of the seeds that did not finish


class SweepRecord(Record):
    """sweep.json."""

    question: Question
    spent_s: float = 0.0
    is_done: bool = False
    trials: list[TrialRow] = Field(default_factory=list)
    importance: dict[Str, float] = Field(default_factory=dict)
    candidates: list[Candidate] = Field(default_factory=list)
    best_trial: Count | None = None
    verdict: Str = ""


_RECORD_TYPE = TypeAdapter(SweepRecord)


def name_trial(number: int) -> str:
    """Return the variant of a trial's jobs."""
    return f"t{number:03}"


def name_retest(number: int) -> str:
    """Return the variant of the jobs that train a trial's settings again."""
    return f"{_RETEST}{name_trial(number)}"


def label_trial(number: int, source: str) -> str:
    """Return the name of a trial in charts."""
    return DEFAULT if source == DEFAULT else f"trial {number}"


def is_retest(job: Job) -> bool:
    """Return whether a job trains a trial's settings again."""
    return job.request.variant.startswith(_RETEST)


def read_sweep(group: GroupDir) -> SweepRecord:
    """Read sweep.json; RunStateError if it is missing or damaged."""
    return read_validated(group.path / SWEEP, _RECORD_TYPE)


def write_sweep(group: GroupDir, record: SweepRecord) -> None:
    """Replace sweep.json."""
    write_json(group.path / SWEEP, record.model_dump())


@contextmanager
def hold_sweep(group: GroupDir) -> Iterator[None]:
    """Be the only process that requests trials; RunStateError if another process does."""
    with lock.hold(group.path / _LOCK, wait_s=1.0):
        yield


def find_driver(group: GroupDir) -> lock.Holder | None:
    """Return the process that requests trials; None without one."""
    path = group.path / _LOCK
    return lock.read_holder(path) if lock.is_held(path) else None
