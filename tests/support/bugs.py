"""An environment with a bug that can be chosen, for tests of the messages about it."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Buggy(gym.Env[Any, Any]):
    """Episodes of 12 steps with an action of two parts and the outcomes `sold` and `lost`.

    bug: see the methods; most show at step `at` of every episode. Bugs that begin with `mask` add masks.
    """

    metadata: ClassVar[dict[str, Any]] = {"outcomes": ["sold", "lost"], "main_outcome": "sold"}

    def __init__(self, bug: str = "", at: int = 7) -> None:
        stock = spaces.Box(0.0, 20.0, (3,), np.float32)
        self.observation_space = spaces.Dict(
            {"stock": stock, "day": spaces.Discrete(7), "shop": spaces.Box(0, 255, (4,), np.uint8)}
        )
        self.action_space = spaces.MultiDiscrete([3, 3])
        self.bug, self.at = bug, at
        self.steps = self.num_resets = 0
        self.buffer = np.zeros(3, np.float32)
        if bug == "constructor":
            raise ValueError("unknown currency EURO")
        if bug == "no space":
            del self.observation_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=None if self.bug == "seed ignored" else seed)
        self.steps = 0
        self.num_resets += 1
        match self.bug:
            case "reset":
                raise FileNotFoundError("prices.csv")
            case "later reset" if self.num_resets > 1:
                raise FileNotFoundError("prices-2.csv")
            case "reset: observation alone":
                return self._observe()
            case "reset: nothing":
                return None
            case "reset: info of None":
                return self._observe(), None
        return self._observe(), self._mask(True)

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs, reward, info = self._observe(), float(action[0] - action[1]), {}
        over = self.steps >= 12
        info |= self._mask(self.steps != self.at)
        if over:
            info["outcome"] = "sold" if reward > 0 else "lost"
            info |= {"no outcome": {"outcome": None}, "wrong outcome": {"outcome": "solt"}}.get(self.bug, {})
        result = (obs, reward, over, False, info)
        return self._break(*result) if self.steps == self.at else result

    def _observe(self) -> dict[str, Any]:
        stock = self.np_random.uniform(0.0, 20.0, 3).astype(np.float32)
        if self.bug == "array reused":
            self.buffer[:] = stock
            stock = self.buffer
        if self.bug == "far outside":
            stock = stock + np.float32(1000.0)
        if self.bug == "float64":
            stock = stock.astype(np.float64)
        shop = np.zeros(4, np.int64 if self.bug == "int64" else np.uint8)
        return {"stock": stock, "day": self.steps % 7, "shop": shop}

    def _mask(self, is_right: bool) -> dict[str, Any]:
        if not self.bug.startswith("mask"):
            return {}
        mask = np.array([1, 1, 0, 1, 1, 1], np.int8)
        if not is_right and self.bug == "mask: no legal action":
            mask[3:] = 0
        if not is_right and self.bug == "mask: length":
            mask = mask[:4]
        return {} if not is_right and self.bug == "mask: missing" else {"action_mask": mask}

    def _break(self, obs: Any, reward: Any, over: Any, truncated: Any, info: Any) -> Any:
        match self.bug:
            case "raise":
                raise KeyError("price of product 7")
            case "sys.exit":
                sys.exit("no licence")
            case "exit":
                os._exit(7)
            case "segfault":
                ctypes.string_at(0)
            case "hang":
                while True:
                    time.sleep(0.1)
            case "print":
                print("selling " * 1000)
            case "category too high":
                obs["day"] = 7
            case "category below":
                obs["day"] = -1
            case "nan":
                obs["stock"][1] = np.nan
            case "inf":
                obs["stock"][2] = np.inf
            case "shape":
                obs["stock"] = np.zeros(4, np.float32)
            case "ragged list":
                obs["stock"] = [1.0, [2.0, 3.0]]
            case "real numbers as integers":
                obs["shop"] = np.zeros(4)
            case "integer that does not fit":
                obs["shop"] = np.array([0, 0, 0, 256])
            case "missing key":
                del obs["day"]
            case "no observation":
                obs = None
            case "array for a Dict":
                obs = np.zeros(8, np.float32)
            case "reward: inf":
                reward = float("inf")
            case "reward: None":
                reward = None
            case "reward: text":
                reward = "0.5"
            case "reward: vector":
                reward = np.array([1.0, 2.0])
            case "terminated: text":
                over = "no"
            case "info: list":
                info = [info]
            case "four values":
                return obs, reward, over, info
            case "forgotten return":
                return None
        return obs, reward, over, truncated, info

    def close(self) -> None:
        if self.bug == "close":
            raise RuntimeError("the till is open")
