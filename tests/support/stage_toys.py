"""Environments for curricula: they show which stage they are of."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mission_gym.data import Array
from toys import Reset, Step, Toy

# For six updates with 12 episodes of 5 steps each: both moves come in the middle of the run.
STAGES = {
    "earlier": 0.3,
    "stages": [
        {"kwargs": {"bots": 1}, "until": {"metric": "won>=0.3", "episodes": 14}},
        {"kwargs": {"bots": 1}, "options": {"level": 4}, "until": {"steps": 128}},
        {"kwargs": {"bots": 3}, "options": {"level": 1}},
    ],
}


class Staged(Toy):
    """Shows its argument `bots`, the option `level` and a number drawn from its seed; won by a last 1."""

    metadata = {"outcomes": ["won", "lost"], "main_outcome": "won"}
    length = 5

    def __init__(self, bots: int = 1, map_file: str = "", fail: int = -1, shape: int = 3) -> None:
        if bots == fail:
            raise ValueError(f"{bots} bots are too many")
        self.bots, self.level, self.map = bots, 0, Path(map_file).read_text() if map_file else ""
        self.observation_space = spaces.Box(-100.0, 100.0, (shape,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.drawn = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self.level = (options or {}).get("level", 0)
        if self.level < 0:
            raise ValueError(f"there is no level {self.level}")
        return super().reset(seed=seed)

    def begin(self) -> None:
        self.drawn = float(self.np_random.uniform())

    def observe(self) -> Array:
        shown = [self.bots, self.level, self.drawn + len(self.map)]
        return np.resize(np.array(shown, np.float32), self.observation_space.shape)

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.advance(float(action) * self.bots)
        if truncated:
            info |= {"outcome": "won" if action else "lost", "episode_metrics": {"bots": self.bots}}
        return obs, reward, terminated, truncated, info


class Saving(Staged):
    """Comes back by a state of its own."""

    def get_state(self) -> list[Any]:
        return [self.steps, self.level, self.drawn]

    def set_state(self, state: list[Any]) -> None:
        self.steps, self.level, self.drawn = state


class Dying(Staged):
    """Raises at step `die`, if that is not 0."""

    def __init__(self, bots: int = 1, die: int = 0) -> None:
        super().__init__(bots)
        self.die = die

    def step(self, action: Any) -> Step:
        if self.die and self.steps == self.die:
            raise RuntimeError(f"died at step {self.die}")
        return super().step(action)


class Fatal(Staged):
    """Ends its process when it is built with two bots, once for each folder."""

    def __init__(self, bots: int = 1, folder: str = "") -> None:
        super().__init__(bots)
        if bots == 2 and not (died := Path(folder) / "died").exists():
            with suppress(FileExistsError):  # of two processes that build at once one is the first
                died.mkdir()
                os._exit(7)


class StagedVector(VectorEnv[Array, Array, Array]):
    """Rows of `Staged` that leave their resets to the caller."""

    metadata = {**Staged.metadata, "autoreset_mode": AutoresetMode.DISABLED}  # type: ignore[misc]

    def __init__(self, num_envs: int = 1, bots: int = 1, mode: str = "") -> None:
        if mode:
            self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode(mode)}
        self.num_envs = num_envs
        self.rows = [Staged(bots) for _ in range(num_envs)]
        self.single_observation_space = self.rows[0].observation_space
        self.single_action_space = self.rows[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Reset:
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, bool))
        seeds = [None] * self.num_envs if seed is None else np.resize(seed, self.num_envs).tolist()
        for row, given in zip(np.flatnonzero(mask), np.asarray(seeds, object)[mask], strict=True):
            self.rows[row].reset(seed=given, options=options)
        return np.stack([row.observe() for row in self.rows]), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        steps = [row.step(action) for row, action in zip(self.rows, actions, strict=True)]
        obs, reward, terminated, truncated, infos = zip(*steps, strict=True)
        outcomes = np.array([info.get("outcome") for info in infos], object)
        told = {"outcome": outcomes, "_outcome": outcomes != None}  # noqa: E711  by element
        return np.stack(obs), np.array(reward), np.array(terminated), np.array(truncated), told
