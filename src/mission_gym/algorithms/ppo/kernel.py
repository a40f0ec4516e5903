"""The update kernel: everything of PPO that touches the network, behind four calls.

A kernel owns the parameters and the optimizer. `evaluate` is one pass over a block; `epoch` makes one
gradient step per row of `order`. Stop requests are seen between gradient steps. The torch kernel runs `loss`
and is the reference; another one proves with `differentiate` that it agrees (`proof`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.data import Array
from mission_gym.learner.network import NetworkKernel
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


# The columns of a table of gradient steps, and the names of all but the last in a proof.
POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION, RATIO_ERROR, GRAD_NORM = range(7)
NUM_STATS = 7
_NAMES = ("policy loss", "value loss", "entropy", "KL", "clip fraction", "ratio error")


def make_evidence(row: Array, settings: StepSettings, gradient: dict[str, Array]) -> Evidence:
    """What one gradient step, a row of the table, says to a proof."""
    numbers = dict(zip(_NAMES, row.tolist(), strict=False))
    total = row[POLICY_LOSS] + settings.vf_coef * row[VALUE_LOSS] - settings.ent_coef * row[ENTROPY]
    return Evidence(numbers | {"loss": float(total)}, gradient)


class Kernel(NetworkKernel, Protocol):
    """See the module."""

    is_coarse: bool  # it computes in less than float32, in which the policy acts
    reads_late: bool  # `read` waits for a device that computes meanwhile: it is asked once, at the end

    def evaluate(
        self, inputs: Encoded, action: Array, mask: Array | None, *, exact: bool = False
    ) -> tuple[Array, Array]:
        """Log-probabilities of the first len(action) rows and values of all rows, float32. exact: computed in
        it, too."""

    def rescale_values(self, factor: float, shift: float) -> None:
        """Let the critic give factor v + shift where it gave v, by its last layer."""

    def load_samples(self, samples: Samples) -> None:
        """Take the transitions of this update, once."""

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> Any | None:
        """One gradient step per row of `order` [num_minibatches, batch_size]; what `read` makes their
        statistics of, None if stopped."""

    def read(self, tables: list[Any]) -> list[Array]:
        """The statistics of epochs, each float64 [num_minibatches, NUM_STATS]."""

    def differentiate(self, samples: Samples, settings: StepSettings) -> Evidence:
        """Loss, statistics and gradient of the samples as one minibatch; no step is made."""
