"""Mission Gym's trainer: real runs in a temporary folder. `train` for comparisons, `train_defaults` for
`bench defaults`.

`Examiner` judges every side of `bench defaults` by the same episodes, at the same steps, on the same clock: a
curve on the selection suite, and the final policy, not the best one, on the report suite. The clock counts
the CPU time of training. Each side is one process with one thread, so that is the time a quiet core would
need, even on a busy machine. Start-up and evaluations do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mission_gym.errors import WorkerError
from mission_gym.rollout.play import Actor
from mission_gym.run.build import make_loaded_policy
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.evaluation import Evaluator, evaluate, policy_actor
from mission_gym.run.open import open_run
from mission_gym.run.start import start_run
from mission_gym.store.resolve import RunRef
from mission_gym.store.rundir import RunDir
from mission_gym_bench.runner import Evaluation, Stopwatch, TrainingJob, TrainingResult

_NUM_EXAMS = 20  # points of a curve
_EXAM_EPISODES = 10
_PLAIN = {
    "tune": False, "vector": "serial", "device": "cpu", "threads": 1, "eval_freq": 0, "tensorboard": False
}  # fmt: skip


def train(job: TrainingJob, folder: Path) -> TrainingResult:
    """Train as `mission-gym train` does, without TensorBoard."""
    evals: list[Evaluation] = []
    ours = {"runs_dir": str(folder), "tensorboard": False, "tune": False}
    resolved = resolve(job.env_id, job.flags | ours)

    def listen(event: dict[str, Any]) -> None:
        if event["event"] in ("eval", "confirm"):
            watch.skip(event["time/seconds"])
        if event["event"] == "eval":
            evals.append(Evaluation(event["step"], watch.read_s(), event["return_mean"]))

    with start_run(resolved, listen) as session:
        watch = Stopwatch()
        updates = session.updates()
        warm_from = next(updates).step
        first_s = watch.read_s()
        for _ in updates:
            pass
        warm_s = watch.read_s() - first_s
    verdict = session.telemetry.summarize()["time/verdict"]
    return TrainingResult(
        gradient_steps=session.learner.gradient_steps,
        warm_steps=session.step - warm_from,
        warm_s=warm_s,
        return_mean=session.recorder.rolling().get("rollout/ep_rew_mean"),
        evals=evals,
        report_return=_report(session.run, job.report_episodes) if job.report_episodes else None,
        evidence=verdict["evidence"] if verdict else "",
    )


def _report(run: RunDir, episodes: int) -> float:
    """Return the mean return of the best checkpoint on the report suite."""
    opened = open_run(RunRef(run, None))
    actor = policy_actor(opened.policy, opened.environment.spec)
    result = evaluate(opened.environment, actor, "report", episodes)
    assert result is not None  # only a stop request returns None
    return result.return_mean


def train_defaults(job: TrainingJob, folder: Path) -> TrainingResult:
    """Train as `mission-gym train ENV --timesteps N --seed S --no-tune` does, in one process with one thread.

    Neither tuning nor the serial vector changes the learned policy. In one process the clock counts
    everything.
    """
    resolved = resolve(job.env_id, job.flags | _PLAIN | {"runs_dir": str(folder)})
    with Examiner(job) as examiner, start_run(resolved, lambda event: None) as session:

        def make_actor() -> Actor:
            policy = make_loaded_policy(session.config, session.spec, session.learner.weights())
            return policy_actor(policy, session.spec)

        examiner.begin()
        for progress in session.updates():
            examiner.look(progress.step, make_actor)
        if session.step < job.flags["timesteps"]:  # a signal: saved, but not to be compared
            raise WorkerError(f"the training was stopped at step {session.step:,}")
        return examiner.finish(session.step, make_actor(), session.learner.gradient_steps)


class Examiner(ExitStack):
    """Examines the policies of one training."""

    def __init__(self, job: TrainingJob) -> None:
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
        """Examine the policy if an exam is due after this many steps."""
        if step // self._every > self._last_step // self._every:
            self._examine(step, make_actor())

    def finish(self, step: int, actor: Actor, gradient_steps: int) -> TrainingResult:
        """Return the curve with its last point, and the report of the final policy."""
        train_s = self._watch.read_s()
        if step > self._last_step:
            self._examine(step, actor)
        report = evaluate(self._environment, actor, "report", self._report_episodes)
        return TrainingResult(
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
