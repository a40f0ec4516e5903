"""SAC's learner: the noise of its gradient steps, and its metrics.

The replay, the count of due gradient steps and unfinished updates are in `learner.off_policy_learner`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mission_gym.algorithms.sac.kernel import (
    ACTOR_LOSS,
    ACTOR_NORM,
    ACTOR_STEPS,
    ALPHA,
    CRITIC_LOSS,
    ENTROPY,
    ERROR,
    GRAD_NORM,
    NUM_STATS,
    VALUE,
    SacKernel,
)
from mission_gym.algorithms.sac.section import SacSection
from mission_gym.learner.off_policy_learner import OffPolicyLearner, StepStats, Transitions
from mission_gym.learner.replay import ReplayLayout
from mission_gym.policy import PolicySpec
from mission_gym.streams import generator


class SacLearner(OffPolicyLearner):
    """See `learner.contract.Learner`. section: its hyperparameters, explained in docs/algorithms/sac.md."""

    kernel: SacKernel
    NUM_STATS = NUM_STATS
    NORM = GRAD_NORM
    REMEDY = "Lower learning_rate or scale the rewards"

    def __init__(
        self, kernel: SacKernel, spec: PolicySpec, section: SacSection, layout: ReplayLayout, **options: Any
    ) -> None:
        """options: those of `OffPolicyLearner`."""
        super().__init__(spec, section, layout, **options)
        self.kernel = kernel
        self.section = section

    def exploration(self) -> float:
        """1, uniform actions, until learning starts; the policy explores afterwards."""
        return float(self.step < self.section.learning_starts)

    def _learn(self, batch: Transitions, learning_rate: float, first: int) -> StepStats:
        num, size, width = len(batch.action), self.section.batch_size, batch.action.shape[1]
        noise = np.stack(
            [
                generator(self.seed, "sac", self.version, first + number).standard_normal(
                    (2, size, width), np.float32
                )
                for number in range(num // size)
            ]
        )
        return self.kernel.learn(batch, noise, learning_rate, self._paid + first)

    def _describe(self, means: list[float] | None) -> dict[str, float]:
        if means is None:
            return {}
        metrics = {
            "train/loss": means[CRITIC_LOSS],
            "train/q_mean": means[VALUE] * self.unit,
            "train/td_error": means[ERROR] * self.unit,
            "train/alpha": means[ALPHA] * self.unit,
        }
        if moved := means[ACTOR_STEPS]:
            metrics |= {
                "train/actor_loss": means[ACTOR_LOSS] / moved,
                "train/actor_norm": means[ACTOR_NORM] / moved,
                "train/entropy": means[ENTROPY] / moved,
            }
        return metrics
