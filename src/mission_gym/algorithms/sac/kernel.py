"""The contract of SAC's kernels: everything that touches the networks.

A kernel owns the actor, the critics, the temperature, an optimizer for each, and the targets of the critics.
The torch kernel runs `loss` and is the reference; `differentiate` verifies another kernel against it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mission_gym.data import Array
from mission_gym.learner.contract import NetworkKernel
from mission_gym.learner.off_policy_learner import StepStats, Transitions
from mission_gym.learner.verify import Evidence

NUM_CRITICS = 2
ADAM_EPSILON = 1e-8
# The names of the parts with an optimizer besides the actor's, which has none, and of the critics' targets.
CRITIC, TEMPERATURE, TARGET = "critic", "temperature", "target"
# The columns of a table of gradient steps. Those of the actor count in steps that move it.
CRITIC_LOSS, VALUE, ERROR, GRAD_NORM, ACTOR_STEPS, ACTOR_LOSS, ACTOR_NORM, ENTROPY, ALPHA = range(9)
NUM_STATS = 9


class SacSettings(NamedTuple):
    """The settings of a gradient step that do not change during a run."""

    batch_size: int
    tau: float
    policy_delay: int
    target_entropy: float | None  # None: the temperature is not learned
    num_dropped: int  # quantiles of each critic
    num_quantiles: int
    layer_norm: bool
    temperature: float  # at the start


class SacKernel(NetworkKernel, Protocol):
    """See the module."""

    def learn(self, batch: Transitions, noise: Array, learning_rate: float, first: int) -> StepStats:
        """One gradient step per `batch_size` transitions. One that is not finite is skipped; its norm shows
        it.

        noise: normal [steps, 2, B, K], for actions of the observations and of the next ones. first: the
        number of the first step in the run, by which a delayed actor moves.
        """

    def differentiate(self, batch: Transitions, noise: Array) -> Evidence:
        """Losses, statistics and gradients of one minibatch, without a step. noise: normal [2, B, K]."""


def head_power(parameter: str) -> int:
    """The power of the factor by which a critic parameter's gradient grows if all values are multiplied by
    it: errors grow by the factor, and gradients below the heads also pass the heads' weights."""
    return 1 if parameter.startswith("head.") else 2
