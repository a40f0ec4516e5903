"""The unit in which values are learned: the deviation of discounted sums of rewards, for each environment.

Whatever a task pays, errors are then about 1, so a loss that is linear beyond 1 and a clipped gradient mean
the same everywhere. No reward is clipped, no mean is taken off. The unit stays while the deviation is near
it, so that targets do not drift under the values.
"""

from __future__ import annotations

import math

import numpy as np

from mission_gym.data import Array, Block
from mission_gym.learner.ring import sum_rewards

_NEAR = 1.25  # a deviation that is so many times larger or smaller than the unit becomes the new one
_FLOOR = 1e-8  # of a deviation: rewards that are all alike have none, and say nothing of a scale


class ValueScale:
    """`see` every block, then `move`; `unit` is what values and rewards are divided by."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.sums = np.zeros(num_envs)  # of the running episodes, carried over blocks
        self._moments = np.zeros(3)  # how many sums were seen, their mean, the sum of squares around it
        self.unit = 1.0

    @property
    def deviation(self) -> float:
        count, _, squares = self._moments
        return math.sqrt(squares / count) if count else 0.0

    def see(self, block: Block) -> None:
        """Take the rewards of a full block, a column for each environment, into the statistics."""
        ended = block.terminated | block.truncated
        sum_rewards(block.reward, ended, block.valid, self.gamma, self.sums, self._moments)

    def move(self) -> float:
        """Move the unit to a deviation that is no longer near; returns what values must be multiplied with to
        stay what they are in units of reward."""
        before, now = self.unit, self.deviation
        if now > _FLOOR and not before / _NEAR <= now <= before * _NEAR:
            self.unit = now
        return before / self.unit

    def arrays(self) -> dict[str, Array]:
        moments = np.array([*self._moments, self.unit])
        return {"value_scale.sums": self.sums.copy(), "value_scale.moments": moments}

    def load(self, arrays: dict[str, Array]) -> None:
        self.sums = np.array(arrays["value_scale.sums"])
        *moments, self.unit = arrays["value_scale.moments"].tolist()
        self._moments = np.array(moments)
