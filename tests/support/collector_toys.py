"""Environments and a policy for tests of collectors: one that counts and waits at a gate, and two that show
whether a policy kept its memory."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import ActOut, Array, Leaves, Weights


class Counter(gym.Env[Any, Any]):
    """Observes (steps since it was built, steps of the episode), with the first as its reward; episodes of 7
    steps. With `gate`, the path of a FIFO, its third step waits for a byte from there."""

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


class Counted(gym.Env[Any, Any]):
    """Episodes of 3 + seed % 5 steps with an empty observation; the reward is 1 if the action is the parity
    of the episode's step."""

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


def memory_seed_of(env_id: int, episode: int) -> int:
    """Seeds that give the columns of `Counted` episodes of different lengths."""
    return 10 * env_id + 3 * episode
