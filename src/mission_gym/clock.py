"""Timers of the phases of a role.

A clock belongs to one role (`collector`, `learner`, `main`) and is used by one thread at a time. `phase`
times coarse phases and keeps spans for the timeline; `add` sums fine phases that were timed elsewhere.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Self

from mission_gym.data import Phases, Span

# The phases of each role; the rest of its wall time is idle. `act`, `env`, `wait` and `lost` are fine phases
# of the coarse `collect`, whose rest is `copy`; `values` is a fine phase of `update`.
ROLES = {
    "collector": ("act", "env", "wait", "lost", "copy"),
    "learner": ("values", "update"),
    "main": ("record", "evaluate", "save"),
}
_NUM_SPANS = 256  # kept between two calls of `take`; the oldest are dropped


def time_call(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


class PhaseClock:
    """Adds wall seconds to named phases of one role, and keeps their start and end."""

    __slots__ = ("_now", "_running", "_seconds", "_spans", "role")

    def __init__(self, role: str = "main", now: Callable[[], float] = time.perf_counter) -> None:
        self.role = role
        self._now = now
        self._running: tuple[str, float] | None = None  # the current phase and its start
        self._seconds: dict[tuple[str, str], float] = {}
        self._spans: deque[Span] = deque(maxlen=_NUM_SPANS)

    @property
    def running(self) -> str | None:
        """The present coarse phase. Any thread may ask."""
        running = self._running
        return None if running is None else running[0]

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds that were timed elsewhere, without a span."""
        key = (self.role, phase)
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def phase(self, name: str) -> Self:
        """Time the block of a `with` statement as phase `name`, also if it raises. Phases can't be nested."""
        self._running = name, self._now()
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self.split()
        self._running = None

    def split(self) -> None:
        """Count the current phase up to now; its rest is counted later. Only for the clock's own thread."""
        if self._running is not None:
            name, start = self._running
            end = self._now()
            self.add(name, end - start)
            self._spans.append(Span(self.role, name, start, end))
            self._running = name, end

    def take(self) -> Phases:
        """Return the times since the last call, and reset them."""
        taken = Phases(self._seconds, list(self._spans))
        self._seconds = {}
        self._spans.clear()
        return taken
