"""What planning needs to measure: real learners, policies and collectors of a config.

The run room builds them, with the tables behind it; planning is handed this.
"""

from __future__ import annotations

from typing import Any, Protocol

from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Settled
from mission_gym.data import Block, Weights
from mission_gym.learner.contract import Algorithm, Learner
from mission_gym.rollout.collector import ActingPolicy, BlockCollector


class Workshop(Protocol):
    """Builds for one environment and one algorithm."""

    @property
    def environment(self) -> Any:
        """The run room's Environment: spec, factory, backend, step_s."""

    @property
    def algorithm(self) -> Algorithm: ...

    def settle(self, resolved: Resolved) -> Settled:
        """A config with every `auto` resolved, as a run of it would have it."""

    def make_learner(self, config: Settled) -> Learner: ...

    def make_policy(self, config: Settled, weights: Weights) -> ActingPolicy: ...

    def make_collector(self, config: Settled) -> tuple[Any, BlockCollector, list[Block]]:
        """The vector, the collector that steps it and the blocks it fills; close the vector."""
