"""The rate that a plan predicts: steps per second of collecting and learning, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator

from mission_gym.data import Progress

_LEAST_S = 0.5  # of training before its rate is told


class TrainingRate:
    """Counts the steps and seconds of a loop: all its updates but the first, and those before DQN learns."""

    def __init__(self) -> None:
        self._steps, self._seconds = 0, 0.0

    @property
    def per_s(self) -> float | None:
        """None before there is enough to tell."""
        return round(self._steps / self._seconds, 1) if self._seconds > _LEAST_S else None

    def follow(self, loop: Iterator[Progress]) -> Iterator[Progress]:
        """The same loop; what is done between its updates does not count."""
        last: Progress | None = None
        while True:
            begun = time.perf_counter()
            progress = next(loop, None)
            if progress is None:
                return
            if last is not None and last.gradient_steps:
                self._steps += progress.step - last.step
                self._seconds += time.perf_counter() - begun
            last = progress
            yield progress
