"""The contract of PPO's update kernels: everything that touches the network.

A kernel owns the parameters and the optimizer. `evaluate` is one pass over a block; `epoch` runs one gradient
step per row of `order`. Stop requests are seen between gradient steps. The torch kernel runs `loss` and is
the reference; `differentiate` verifies another kernel against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.data import Array
from mission_gym.learner.blocks import SequenceMemory
from mission_gym.learner.contract import NetworkKernel
from mission_gym.learner.verify import Evidence
from mission_gym.policy import Encoded

ADAM_EPSILON = 1e-5
# The columns of a table of gradient steps: the gradient norm, then the fields of `loss.Losses`. Terms that
# are added to the loss follow.
GRAD_NORM, LOSS, POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION, RATIO_ERROR = range(8)
COLUMNS: tuple[str, ...] = (
    "gradient norm", "loss", "policy loss", "value loss", "entropy", "KL", "clip fraction", "ratio error",
)  # fmt: skip


@dataclass(slots=True)
class Samples:
    """The flat transitions of a block, N = T x S, with values and advantages."""

    inputs: Encoded  # the first N rows; those of the pass over the block may be passed on whole
    mask: Array | None  # bool [N, M]
    action: Array  # [N, K]
    log_prob: Array  # float32 [N], of the policy before this update
    advantage: Array  # float32 [N]
    returns: Array  # float32 [N]
    value: Array  # float32 [N], of the critic before this update
    weight: Array | None  # float32 [N], 0 for invalid transitions; None: all are valid
    importance: Array | None = None  # float32 [N], multiplies the surrogate; None: all 1
    memory: SequenceMemory | None = None  # None: a policy without memory


def make_evidence(row: Array, columns: tuple[str, ...], gradient: dict[str, Array]) -> Evidence:
    """The evidence of one gradient step, a row of the table; its norm is part of the gradient."""
    numbers = dict(zip(columns[1:], row[1:].tolist(), strict=True))
    total = numbers.pop(COLUMNS[LOSS])  # compared last: its terms name the cause
    return Evidence(numbers | {COLUMNS[LOSS]: total}, gradient)


class Kernel(NetworkKernel, Protocol):
    """See the module."""

    columns: tuple[str, ...]  # names of the table's columns; `COLUMNS` first
    is_low_precision: bool  # computes in less than float32, in which the policy acts
    defers_stats: bool  # `read` waits for a device, so it is called once, at the end

    def evaluate(
        self,
        inputs: Encoded,
        action: Array,
        mask: Array | None,
        memory: SequenceMemory | None = None,
        *,
        exact: bool = False,
    ) -> tuple[Array, Array]:
        """Log-probabilities of the first len(action) rows and values of all rows, float32.

        exact: computed in float32, too.
        """

    def load_samples(self, samples: Samples) -> None:
        """Load the transitions of this update, once."""

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> Any | None:
        """One gradient step per row of `order` [num_minibatches, batch_size]; None if stopped, else
        statistics for `read`."""

    def read(self, tables: list[Any]) -> list[Array]:
        """The statistics of epochs, each float64 [num_minibatches, len(columns)]."""

    def differentiate(self, samples: Samples, settings: StepSettings) -> Evidence:
        """Loss, statistics and gradient of the samples as one minibatch, without a step."""
