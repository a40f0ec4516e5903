"""The kernel of DQN: everything that touches the networks, behind `learn` and `copy_to_target`.

A kernel owns the online network, the target network and the optimizer. The torch kernel runs `loss` and is
the reference; another one proves with `differentiate` that it agrees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from mission_gym.algorithms.dqn.section import DqnSection
from mission_gym.data import Array
from mission_gym.learner.network import NetworkKernel
from mission_gym.learner.proof import Evidence
from mission_gym.policy import Encoded

ADAM_EPSILON = 1e-8
NoiseOf = Callable[[int], np.random.Generator]  # the stream of a gradient step, by its place in the batches


@dataclass(slots=True)
class Batches:
    """The transitions of some gradient steps, N = steps x batch_size, in the order of the steps."""

    inputs: Encoded
    action: Array  # int64 [N]
    reward: Array  # float32 [N], n-step
    discount: Array  # float32 [N]
    next_inputs: Encoded
    next_mask: Array | None  # bool [N, A]
    weight: Array | None  # float32 [N], of prioritised replay; None: all 1


class QSettings(NamedTuple):
    """The numbers of one gradient step; schedules are already evaluated."""

    batch_size: int
    learning_rate: float
    max_grad_norm: float
    double: bool
    huber: bool
    tau: float  # 1: the target stays until it is copied


def make_settings(section: DqnSection, batch_size: int, learning_rate: float) -> QSettings:
    huber = section.loss == "huber"
    return QSettings(batch_size, learning_rate, section.max_grad_norm, section.double, huber, section.tau)


# The columns of a table of gradient steps: loss, mean value of the actions taken, mean |error|, norm.
LOSS, VALUE, ERROR, GRAD_NORM = range(4)
NUM_STATS = 4


class QStats(NamedTuple):
    """What some gradient steps did."""

    table: Array  # float64 [steps, NUM_STATS]
    errors: Array  # float32 [N]: Q(o, a) - target
    num_skipped: int = 0  # steps that were not finite, and so were not made


def make_evidence(stats: QStats, gradient: dict[str, Array]) -> Evidence:
    """What one gradient step says to a proof."""
    row = stats.table[0]
    numbers = {"loss": float(row[LOSS]), "mean value": float(row[VALUE]), "mean error": float(row[ERROR])}
    return Evidence(numbers, gradient)


class QKernel(NetworkKernel, Protocol):
    """See the module."""

    def learn(self, batches: Batches, settings: QSettings, noise_of: NoiseOf) -> QStats:
        """One gradient step per `batch_size` rows; one that is not finite is not made, its norm in the table
        tells."""

    def differentiate(self, batches: Batches, settings: QSettings) -> Evidence:
        """Loss, statistics and gradient of one minibatch, without noise; no step is made."""

    def copy_to_target(self) -> None: ...

    def target(self) -> dict[str, Array]:
        """Copies of the target network's arrays by name."""

    def load_target(self, arrays: dict[str, Array]) -> None: ...
