"""What a sweep keeps in its group's folder, besides what every group does.

study.log     Optuna's journal: every trial, its parameters and its two values; the truth about trials
sweep.json    the question, and what became of it so far; made anew from the two journals
best.yaml     the setting that was best on fresh seeds, valid as --config
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from mission_gym.store import lock
from mission_gym.store.checked import Count, Record, Str, read_checked
from mission_gym.store.files import write_json
from mission_gym.store.groups import GroupDir, Job

STUDY, BEST, _RECORD, _LOCK = "study.log", "best.yaml", "sweep.json", ".sweep-lock"
_RETEST = "retest-"
OF_A_SWEEP = (STUDY, f"{STUDY}.lock", BEST, _RECORD, _LOCK)
DEFAULT = "default"  # the source of the first trial: what is trained without a sweep
Value = bool | int | float | str | None
Values = dict[str, Any]  # by field name
_Seeds = Annotated[list[Count], Field(min_length=1)]


class Axis(BaseModel):
    """A field that is searched: a range from low to high, or choices."""

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
        """Whether the search could come to this value."""
        if self.choices:
            return value in self.choices
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high


class Start(BaseModel):
    """A setting that is tried before the search draws its own."""

    source: Str
    values: Values  # of the searched fields
    given: Values  # what its runs are told; nothing, for what they have without being told


class Question(BaseModel):
    """What a sweep was asked for."""

    asked: Values  # as the user gave them, by the names of flags
    values: Values  # what all runs are told: these, and the sizes that are the same for all
    over: Str
    axes: list[Axis]
    starts: list[Start]  # the default first
    measure: Str  # what is ranked by its lower bound: return, or the main outcome
    trials: Count | None
    budget_s: float | None
    seeds: _Seeds  # of every trial
    retest: Count
    retest_seeds: _Seeds  # of the best ones, trained again; none of `seeds`
    pruner: Literal["none", "median"] = "none"
    folder: Str  # where it was asked for


class TrialRow(Record):
    """A trial as it is told."""

    number: Count
    source: Str
    state: Literal["running", "complete", "failed", "pruned"]
    values: Values
    score: float | None = None
    seconds: float | None = None
    cause: Str = ""


class Candidate(Record):
    """A setting that was trained again on fresh seeds."""

    trial: Count
    source: Str
    values: Values
    iqm: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: Count = 0  # that were trained to the end
    seconds: float | None = None
    causes: list[Str] = Field(default_factory=list)  # of those that were not


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
    """The variant of a trial's jobs."""
    return f"t{number:03}"


def name_retest(number: int) -> str:
    """The variant of the jobs that train a trial's setting again."""
    return f"{_RETEST}{name_trial(number)}"


def is_retest(job: Job) -> bool:
    """Whether a job is one of those."""
    return job.request.variant.startswith(_RETEST)


def read_sweep(group: GroupDir) -> SweepRecord:
    """sweep.json; RunStateError if it is missing or damaged."""
    return read_checked(group.path / _RECORD, _RECORD_TYPE)


def write_sweep(group: GroupDir, record: SweepRecord) -> None:
    """Replace sweep.json."""
    write_json(group.path / _RECORD, record.model_dump())


@contextmanager
def hold_sweep(group: GroupDir) -> Iterator[None]:
    """Be the one process that asks for trials; RunStateError if another one is."""
    with lock.hold(group.path / _LOCK, wait_s=1.0):
        yield


def find_driver(group: GroupDir) -> int | None:
    """The process that asks for trials; None if there is none."""
    path = group.path / _LOCK
    if not lock.is_held(path):
        return None
    text = path.read_text()
    return int(text) if text.isdigit() else None
