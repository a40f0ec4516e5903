"""What every side of `bench defaults` is judged by: the same episodes, at the same steps, on the same clock.

A curve of the selection suite, and the final policy, not the best one, on the report suite. The clock counts
what the processor spends on training: each side is one process with one thread, so that is the time that a
quiet core would need, on a busy machine too. Start and evaluations are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from mission_gym.rollout.play import Actor
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.evaluation import Evaluator, evaluate
from mission_gym_bench.sides import Evaluation, Job, Result, Stopwatch

_NUM_EXAMS = 20  # points of a curve
_EXAM_EPISODES = 10


class Examiner(ExitStack):
    """Examines the policies of one training."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._environment = open_environment(resolve(job.env_id, {"vector": "serial"}).config, {})
        self._evaluator = self.enter_context(Evaluator(self._environment, "select", _EXAM_EPISODES))
        self._every = max(job.flags["timesteps"] // _NUM_EXAMS, 1)
        self._report_episodes = job.report_episodes
        self._curve: list[Evaluation] = []
        self._last_step = 0
        self.begin()

    def begin(self) -> None:
        """Training starts now."""
        self._watch = Stopwatch(time.process_time)

    def look(self, step: int, make_actor: Callable[[], Actor]) -> None:
        """Examine, if that is due after so many steps."""
        if step // self._every > self._last_step // self._every:
            self._examine(step, make_actor())

    def finish(self, step: int, actor: Actor, gradient_steps: int) -> Result:
        """The last point of the curve, and the report of the final policy."""
        train_s = self._watch.read_s()
        if step > self._last_step:
            self._examine(step, actor)
        report = evaluate(self._environment, actor, "report", self._report_episodes)
        return Result(
            gradient_steps=gradient_steps,
            warm_steps=step,
            warm_s=train_s,
            return_mean=None,
            evals=self._curve,
            report_return=report.return_mean,
        )

    def _examine(self, step: int, actor: Actor) -> None:
        train_s = self._watch.read_s()
        self._last_step = step
        self._curve.append(Evaluation(step, train_s, self._evaluator.play_all(actor).return_mean))
        self._watch.skip(self._watch.read_s() - train_s)
