"""An environment with a bug that can be chosen, for tests of what a user is told about it."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Buggy(gym.Env[Any, Any]):
    """Episodes of 12 steps with an action of two parts and the outcomes `sold` and `lost`. bug: what goes
    wrong, at step `at` of every episode."""

    metadata: ClassVar[dict[str, Any]] = {"outcomes": ["sold", "lost"], "main_outcome": "sold"}

    def __init__(self, bug: str = "", at: int = 7) -> None:
        self.observation_space = spaces.Dict(
            {"stock": spaces.Box(0.0, 20.0, (3,), np.float32), "day": spaces.Discrete(7)}
        )
        self.action_space = spaces.MultiDiscrete([3, 3])
        self.bug, self.at = bug, at
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        if self.bug == "reset":
            raise FileNotFoundError("prices.csv")
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs, reward, info = self._observe(), float(action[0] - action[1]), {}
        over = self.steps >= 12
        if over:
            info["outcome"] = "sold" if reward > 0 else "lost"
        if self.steps == self.at:
            obs, reward, info = self._break(obs, reward, info)
        if over and self.bug == "no outcome":
            info = {}
        if over and self.bug == "wrong outcome":
            info["outcome"] = "solt"
        return obs, reward, over, False, info

    def _observe(self) -> dict[str, Any]:
        return {"stock": self.np_random.uniform(0.0, 20.0, 3).astype(np.float32), "day": self.steps % 7}

    def _break(self, obs: Any, reward: Any, info: Any) -> Any:
        match self.bug:
            case "raise":
                raise KeyError("price of product 7")
            case "hang":
                while True:
                    time.sleep(0.1)
            case "high":
                obs["day"] = 7
            case "low":
                obs["day"] = -1
            case "int64":
                obs["stock"] = np.zeros(3, np.int64)
            case "float64":
                obs["stock"] = np.zeros(3)
            case "nan":
                obs["stock"][1] = np.nan
            case "reward":
                reward = float("inf")
            case "shape":
                obs["stock"] = np.zeros(4, np.float32)
            case "info":
                info = [info]
            case "key":
                del obs["day"]
        return obs, reward, info
