"""What a contest hands to a side and what comes back; one side trains once, in a process of its own.

The same Job goes to every side: each resolves the same flags to the same config, so settings are equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Job:
    """One training by one side; `flags` are those of `mission-gym train`."""

    side: str  # "ours" or a peer
    env_id: str
    flags: dict[str, Any]
    report_episodes: int = 0  # of the best policy, on the report suite; 0: none
    form: str = ""  # how the side runs, where it can run in several ways
    subproc: bool = False  # a peer's environments in processes of their own
    threads: int = 1  # of a peer's torch

    @property
    def name(self) -> str:
        return f"{self.side} {self.form}".strip()

    def __str__(self) -> str:
        return f"{self.env_id} seed {self.flags['seed']} {self.name}"


class Evaluation(NamedTuple):
    """An evaluation on the selection suite."""

    step: int
    train_s: float  # seconds of training before it, evaluations left out
    return_mean: float


@dataclass(frozen=True, slots=True)
class Result:
    """What one training gave."""

    gradient_steps: int
    warm_steps: int  # made after the first update
    warm_s: float
    return_mean: float | None  # rolling, over the last training episodes
    evals: list[Evaluation]
    report_return: float | None
    evidence: str = ""  # what ours says bounds it, with the share of the rate of a plain matrix product
    wall_s: float = 0.0  # of the whole process, start-up included; the parent measures it


class Stopwatch:
    """Seconds of a training loop by a clock, without those that are skipped."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begun = clock()

    def skip(self, seconds: float) -> None:
        self._begun += seconds

    def read_s(self) -> float:
        return self._clock() - self._begun
