"""The contract of DQN's kernels: everything that touches the networks.

A kernel owns the online network, the target network and the optimizer. The torch kernel runs `loss` and is
the reference; `differentiate` verifies another kernel against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from mission_gym.algorithms.dqn.section import DqnSection
from mission_gym.data import Array
from mission_gym.learner.contract import NetworkKernel
from mission_gym.learner.off_policy_learner import StepStats, Transitions
from mission_gym.learner.verify import Evidence

ADAM_EPSILON = 1e-8
TARGET = "target"  # the name of the target network
NoiseOf = Callable[[int], np.random.Generator]  # the generator of a gradient step, by its number in the batch
# The columns of a table of gradient steps: loss, mean value of the chosen actions, mean |error|, gradient
# norm.
LOSS, VALUE, ERROR, GRAD_NORM = range(4)
NUM_STATS = 4


class QSettings(NamedTuple):
    """The settings of one gradient step; schedules are evaluated."""

    batch_size: int
    learning_rate: float
    max_grad_norm: float
    double: bool
    huber: bool
    tau: float  # 1: the target network stays until it is copied


def make_settings(section: DqnSection, batch_size: int, learning_rate: float) -> QSettings:
    huber = section.loss == "huber"
    return QSettings(batch_size, learning_rate, section.max_grad_norm, section.double, huber, section.tau)


def make_evidence(stats: StepStats, gradient: dict[str, Array]) -> Evidence:
    """The evidence of one gradient step."""
    row = stats.table[0]
    numbers = {"loss": float(row[LOSS]), "mean value": float(row[VALUE]), "mean error": float(row[ERROR])}
    return Evidence(numbers, gradient)


def scale_power(parameter: str, heads: tuple[str, ...]) -> int:
    """The power of the factor by which a parameter's gradient grows if all values are multiplied by it.

    Errors grow by the factor, and so do the gradients of the heads; those below also pass the heads' weights.
    """
    return 1 if parameter.rpartition(".")[0] in heads else 2


class QKernel(NetworkKernel, Protocol):
    """See the module."""

    def learn(self, batch: Transitions, settings: QSettings, noise_of: NoiseOf) -> StepStats:
        """One gradient step per `batch_size` transitions. One that is not finite is skipped; its norm shows
        it."""

    def differentiate(self, batch: Transitions, settings: QSettings) -> Evidence:
        """Loss, statistics and gradient of one minibatch, without noise and without a step."""

    def copy_to_target(self) -> None: ...
