"""The update kernel: everything of PPO that touches the network, behind four calls.

A kernel owns the parameters and the optimizer. `evaluate` is one pass over a block; `epoch` makes one
gradient step per row of `order`. Stop requests are seen between gradient steps. The torch kernel runs `loss`
and is the reference; another one proves with `differentiate` that it agrees (`proof`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.data import Array
from mission_gym.learner.proof import Evidence
from mission_gym.policy import Encoded

ADAM_EPSILON = 1e-5


@dataclass(slots=True)
class Samples:
    """The flat transitions of a block, N = T x S, after values and advantages were computed."""

    inputs: Encoded  # the first N rows; those of the pass over the block may be handed on whole
    mask: Array | None  # bool [N, M]
    action: Array  # [N, K]
    log_prob: Array  # float32 [N], of the policy before this update
    advantage: Array  # float32 [N]
    returns: Array  # float32 [N]
    value: Array  # float32 [N], of the critic before this update
    weight: Array | None  # float32 [N], 0 for transitions that are not valid; None: all are
    importance: Array | None = None  # float32 [N], multiplies the surrogate; None: all are 1


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


# The columns of a table of gradient steps.
POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION, RATIO_ERROR, GRAD_NORM = range(7)
NUM_STATS = 7


def mean_stats(table: Array) -> EpochStats:
    """The epoch of a table [gradient steps, NUM_STATS]."""
    means = [float(mean) for mean in table.mean(axis=0)]
    return EpochStats(
        gradient_steps=len(table),
        policy_loss=means[POLICY_LOSS],
        value_loss=means[VALUE_LOSS],
        entropy=means[ENTROPY],
        approx_kl=means[APPROX_KL],
        clip_fraction=means[CLIP_FRACTION],
        grad_norm=float(table[:, GRAD_NORM].max()),
        first_kl=float(table[0, APPROX_KL]),
        first_ratio_error=float(table[0, RATIO_ERROR]),
    )


def make_evidence(row: Array, settings: StepSettings, gradient: dict[str, Array]) -> Evidence:
    """What one gradient step, a row of the table, says to a proof."""
    total = row[POLICY_LOSS] + settings.vf_coef * row[VALUE_LOSS] - settings.ent_coef * row[ENTROPY]
    numbers = {
        "policy loss": row[POLICY_LOSS],
        "value loss": row[VALUE_LOSS],
        "entropy": row[ENTROPY],
        "KL": row[APPROX_KL],
        "clip fraction": row[CLIP_FRACTION],
        "ratio error": row[RATIO_ERROR],
        "loss": total,
    }
    return Evidence({name: float(number) for name, number in numbers.items()}, gradient)


class Kernel(Protocol):
    """See the module."""

    notes: list[str]  # what could not be done as planned on the device

    def evaluate(self, inputs: Encoded, action: Array, mask: Array | None) -> tuple[Array, Array]:
        """Log-probabilities of the first len(action) rows and values of all rows, float32."""

    def load_samples(self, samples: Samples) -> None:
        """Take the transitions of this update, once."""

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> EpochStats | None:
        """One gradient step per row of `order` [num_minibatches, batch_size]; None if stopped."""

    def differentiate(self, samples: Samples, settings: StepSettings) -> Evidence:
        """Loss, statistics and gradient of the samples as one minibatch; no step is made."""

    def parameters(self) -> dict[str, Array]:
        """Copies of the network's arrays by name."""

    def load_parameters(self, arrays: dict[str, Array]) -> None: ...

    def optimizer(self) -> dict[str, Array]:
        """Copies of the optimizer's arrays by name."""

    def load_optimizer(self, arrays: dict[str, Array]) -> None: ...
