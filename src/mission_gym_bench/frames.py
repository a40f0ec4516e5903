"""Environments of pictures for `bench images`: grey frames of a known cost, and maps of the mission."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym_bench.burn import Burn

_NUM_SHOWN = 16  # different pictures of an environment


class Frames(Burn):
    """Grey pictures of 84 x 84, another one at each step. channel: with an axis for it, as SB3 wants them."""

    def __init__(self, spins: int = 0, channel: bool = False) -> None:
        super().__init__(spins)
        shape = (84, 84, 1) if channel else (84, 84)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self._shown = np.random.default_rng(0).integers(0, 256, (_NUM_SHOWN, *shape), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return self._shown[0], {}

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return self._shown[self._steps % _NUM_SHOWN], *rest


class MapAlone(gym.ObservationWrapper[Any, Any, Any]):
    """The map of the territory mission without its numbers, and without a mask: SB3's PPO takes none."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = env.observation_space["map"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0], {}

    def observation(self, observation: Any) -> Any:
        return observation["map"]
