"""The update kernel: everything of PPO that touches the network, behind four calls.

A kernel owns the parameters and the optimizer. `evaluate` is one pass over a block; `epoch` makes one
gradient step per row of `order`. Stop requests are seen between gradient steps. The torch kernel is
the reference; another one must agree with it within rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mission_gym.data import Array
from mission_gym.policy import Encoded

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-5
ADVANTAGE_FLOOR = 1e-5  # under the deviation: equal advantages carry no signal to amplify


@dataclass(slots=True)
class Samples:
    """The flat transitions of a block, N = T x S, after values and advantages were computed."""

    inputs: Encoded  # the first N rows; those of the pass over the block may be handed on whole
    mask: Array | None  # bool [N, M]
    action: Array  # [N, K]
    log_prob: Array  # float32 [N], of the policy before this update
    advantage: Array  # float32 [N]
    returns: Array  # float32 [N]
    weight: Array | None  # float32 [N], 0 for transitions that are not valid; None: all are
    importance: Array | None = None  # float32 [N], multiplies the surrogate; None: all are 1


@dataclass(frozen=True, slots=True)
class StepSettings:
    """The numbers of one gradient step; schedules are already evaluated."""

    learning_rate: float
    clip_range: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    normalize_advantage: bool


class EpochStats(NamedTuple):
    """Means over the gradient steps of one epoch; `first_kl` is of its first minibatch."""

    gradient_steps: int
    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float  # the largest of the epoch
    first_kl: float
    first_ratio_error: float  # max |ratio - 1| in the first minibatch


def mean_stats(table: Array) -> EpochStats:
    """The epoch of a table [gradient steps, 7]: policy loss, value loss, entropy, KL, clip fraction,
    max |ratio - 1|, gradient norm."""
    policy_loss, value_loss, entropy, approx_kl, clip_fraction = (float(x) for x in table[:, :5].mean(axis=0))
    return EpochStats(
        gradient_steps=len(table),
        policy_loss=policy_loss,
        value_loss=value_loss,
        entropy=entropy,
        approx_kl=approx_kl,
        clip_fraction=clip_fraction,
        grad_norm=float(table[:, 6].max()),
        first_kl=float(table[0, 3]),
        first_ratio_error=float(table[0, 5]),
    )


class Kernel(Protocol):
    """See the module."""

    def evaluate(self, inputs: Encoded, action: Array, mask: Array | None) -> tuple[Array, Array]:
        """Log-probabilities of the first len(action) rows and values of all rows, float32."""

    def load_samples(self, samples: Samples) -> None:
        """Take the transitions of this update, once."""

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> EpochStats | None:
        """One gradient step per row of `order` [num_minibatches, batch_size]; None if stopped."""

    def parameters(self) -> dict[str, Array]:
        """Copies of the network's arrays by name."""

    def load_parameters(self, arrays: dict[str, Array]) -> None: ...

    def optimizer(self) -> dict[str, Array]:
        """Copies of the optimizer's arrays by name."""

    def load_optimizer(self, arrays: dict[str, Array]) -> None: ...
