"""DQN's learner: gradient steps on replayed transitions, a target network, and epsilon.

The replay, the count of due gradient steps and unfinished updates are in `learner.off_policy_learner`.
"""

from __future__ import annotations

from typing import Any

from mission_gym.algorithms.dqn.kernel import ERROR, GRAD_NORM, LOSS, NUM_STATS, VALUE, QKernel, make_settings
from mission_gym.algorithms.dqn.section import DqnSection
from mission_gym.learner.contract import Schedule
from mission_gym.learner.off_policy_learner import OffPolicyLearner, StepStats, Transitions
from mission_gym.learner.replay import ReplayLayout
from mission_gym.policy import PolicySpec
from mission_gym.streams import generator


class DqnLearner(OffPolicyLearner):
    """See `learner.contract.Learner`. section: its hyperparameters, explained in docs/algorithms/dqn.md."""

    kernel: QKernel
    section: DqnSection
    NUM_STATS = NUM_STATS
    NORM = GRAD_NORM
    REMEDY = "Lower learning_rate, scale the rewards or set loss=huber"

    def __init__(
        self, kernel: QKernel, spec: PolicySpec, section: DqnSection, layout: ReplayLayout, **options: Any
    ) -> None:
        """options: those of `OffPolicyLearner`."""
        super().__init__(spec, section, layout, **options)
        self.kernel = kernel
        steps = max(1, round(section.exploration_fraction * options["total_steps"]))
        self._epsilon = Schedule(section.exploration_initial_eps, section.exploration_final_eps, steps)
        if section.exploration == "noisy":
            self._epsilon = Schedule(0.0, 0.0, 1)

    def exploration(self) -> float:
        return self._epsilon.at(self.step)

    def _learn(self, batch: Transitions, learning_rate: float, first: int) -> StepStats:
        settings = make_settings(self.section, self.section.batch_size, learning_rate)
        return self.kernel.learn(
            batch, settings, lambda number: generator(self.seed, "noisy", self.version, first + number)
        )

    def _finish_update(self, after: int) -> None:
        interval = self.section.target_update_interval
        if self.section.tau == 1.0 and after // interval > self.step // interval:
            self.kernel.copy_to_target()

    def _describe(self, means: list[float] | None) -> dict[str, float]:
        metrics = {"rollout/exploration_rate": self.exploration()}
        if means is not None:
            metrics |= {
                "train/loss": means[LOSS],
                "train/q_mean": means[VALUE] * self.unit,
                "train/td_error": means[ERROR] * self.unit,
            }
        return metrics
