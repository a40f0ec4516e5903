"""An environment that counts, and that can be made to wait at a gate for as long as a test likes."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Counter(gym.Env[Any, Any]):
    """Shows (steps since it was built, steps of the episode) and pays the first; episodes of 7 steps. With
    `gate`, the path of a FIFO, its third step takes a byte from there before it goes on."""

    def __init__(self, gate: str = "") -> None:
        self.gate = gate
        self.observation_space = spaces.Box(-1.0, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.total, self.steps = 0, 0

    def observe(self) -> Any:
        return np.array([self.total, self.steps], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.total += 1
        self.steps += 1
        if self.gate and self.total == 3:
            with open(self.gate, "rb", buffering=0) as gate:
                gate.read(1)
        return self.observe(), float(self.total), False, self.steps >= 7, {}


class Gate:
    """The test's side of a gate: nothing passes before `open`."""

    def __init__(self, path: str) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR)  # held, so that a reader waits for a byte and not for a writer

    def open(self) -> None:
        os.write(self._fd, b"x" * 64)

    def close(self) -> None:
        self.open()  # nobody is left waiting when the workers are to end
        os.close(self._fd)
