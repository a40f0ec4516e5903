"""Phase timers: where the wall time of a role went.

A clock belongs to one role (`collector`, `learner`, `main`) and is used by one thread at a time. Coarse
phases are timed with `phase`, which keeps spans for the timeline; fine ones are sums, told to `add`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Self

from mission_gym.data import Phases, Span

# What the wall time of a role is made of; the rest of it is idle. `act`, `env` and `wait` are fine phases
# inside the coarse `collect`, whose rest is `copy`; `values` is one inside `update`.
ROLES = {
    "collector": ("act", "env", "wait", "copy"),
    "learner": ("values", "update"),
    "main": ("record", "evaluate", "save"),
}
_NUM_SPANS = 256  # kept between two calls of `take`; the oldest go first


class PhaseClock:
    """Adds wall seconds to named phases of one role, and keeps when they began and ended."""

    __slots__ = ("_now", "_running", "_seconds", "_spans", "role")

    def __init__(self, role: str = "main", now: Callable[[], float] = time.perf_counter) -> None:
        self.role = role
        self._now = now
        self._running: tuple[str, float] | None = None  # the phase under way, and since when it counts
        self._seconds: dict[tuple[str, str], float] = {}
        self._spans: deque[Span] = deque(maxlen=_NUM_SPANS)

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds that were timed elsewhere; no span."""
        key = (self.role, phase)
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def phase(self, name: str) -> Self:
        """Time the block of a `with` statement under `name`, also when it raises. Phases are not nested."""
        self._running = name, self._now()
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self.split()
        self._running = None

    def split(self) -> None:
        """Count the phase under way up to now; the rest of it comes later. For the clock's own thread."""
        if self._running is not None:
            name, start = self._running
            end = self._now()
            self.add(name, end - start)
            self._spans.append(Span(self.role, name, start, end))
            self._running = name, end

    def take(self) -> Phases:
        """What was counted since the last call; starts anew."""
        taken = Phases(self._seconds, list(self._spans))
        self._seconds = {}
        self._spans.clear()
        return taken
