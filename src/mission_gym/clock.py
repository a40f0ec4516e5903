"""Phase timers: where the wall time of a role went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseClock:
    """Adds wall seconds to named phases. Cheap enough for one entry per vector step."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block under `name`, also when it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def take(self) -> dict[str, float]:
        """Return the seconds per phase since the last call, and start anew."""
        taken, self.seconds = self.seconds, {}
        return taken
