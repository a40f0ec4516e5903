"""How fast a run is: steps per second of training, of everything and of the moment, and the time to go.

The one owner of these numbers: rows, the status, the plan's memory and the screen take them from here.
"""

from __future__ import annotations

from collections.abc import Iterator

from mission_gym.clock import steady_s
from mission_gym.data import Progress

_LEAST_S = 0.5  # of training before its rate is worth keeping
_MOMENT_S = 0.2


class Rate:
    """The steps and seconds of one process's work on a run."""

    def __init__(self) -> None:
        self.elapsed_before_s = 0.0  # seconds of earlier processes of this run
        self._started = steady_s()
        self._began: float | None = None  # of steady_s: the training itself
        self._first_step = self._step = 0
        self._steps, self._seconds = 0, 0.0  # of training
        self._moment = (0, 0.0)  # steps and seconds that the next momentary rate is made of
        self.momentary: float | None = None  # steps/s of training, over a fifth of a second or an update

    def begin_at(self, step: int) -> None:
        """Go on from steps that were made before."""
        self._first_step = self._step = step

    @property
    def elapsed_s(self) -> float:
        """Seconds of all processes of this run."""
        return self.elapsed_before_s + steady_s() - self._started

    @property
    def training(self) -> float | None:
        """Steps/s of collecting and learning alone, as a plan predicts it: of all updates but the first, and
        those before DQN learns. None before there are any."""
        return round(self._steps / self._seconds, 1) if self._seconds else None

    @property
    def is_telling(self) -> bool:
        """Whether that is over enough time to be kept."""
        return self._seconds > _LEAST_S

    def count_made(self, step: int) -> int:
        """Steps of this process, of a run that stands at `step`."""
        return step - self._first_step

    def overall(self, step: int) -> float:
        """Steps/s of this process since its start, everything included."""
        return round(self.count_made(step) / max(steady_s() - self._started, 1e-9), 1)

    def eta_s(self, total: int) -> float | None:
        """Seconds to go to `total` steps at the pace of the training so far, evaluations included."""
        made = self._step - self._first_step
        if self._began is None or not made:
            return None
        return round((steady_s() - self._began) / made * (total - self._step), 1)

    def follow(self, loop: Iterator[Progress]) -> Iterator[Progress]:
        """The same loop; what is done between its updates is not training."""
        self._began = steady_s()
        is_learning = False
        while True:
            begun = steady_s()
            progress = next(loop, None)
            if progress is None:
                return
            steps, seconds = progress.step - self._step, steady_s() - begun
            self._step = progress.step
            self._moment = (self._moment[0] + steps, self._moment[1] + seconds)
            if self._moment[1] >= _MOMENT_S:
                self.momentary, self._moment = round(self._moment[0] / self._moment[1], 1), (0, 0.0)
            if is_learning:
                self._steps += steps
                self._seconds += seconds
            is_learning = progress.gradient_steps > 0
            yield progress
