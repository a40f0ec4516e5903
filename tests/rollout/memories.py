"""A policy with memory, and the environment that shows whether it was kept."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import ActOut, Array, Leaves, Weights


class Counted(gym.Env[Any, Any]):
    """Episodes of 3 + seed % 5 steps that show nothing; it pays 1 where the action is the parity of the
    episode's step."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.length = 0, 3 + (seed or 0) % 5
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        right = int(action) == self.steps % 2
        self.steps += 1
        return np.zeros(1, np.float32), float(right), False, self.steps >= self.length, {}


class Failing(Counted):
    """Raises in the third step of episodes with an odd seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed = seed or 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.steps == 2 and self.seed % 2:
            raise RuntimeError("out of steps")
        return super().step(action)


class CountingPolicy:
    """Counts the steps since its episode began, from 100 on, and plays their parity."""

    def __init__(self) -> None:
        self.version = -1

    def initial_state(self, num_rows: int) -> Leaves:
        return (np.full((num_rows, 1), 100.0, np.float32),)

    def shapes(self) -> dict[str, Any]:
        return {}

    def load(self, weights: Weights) -> None:
        self.version = weights.version

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        (count,) = state
        action = (count % 2).astype(np.int64)
        return ActOut(action, np.zeros(len(action), np.float32), (count + 1,))


def seed_of(env_id: int, episode: int) -> int:
    return 10 * env_id + 3 * episode
