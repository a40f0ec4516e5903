"""Vectors of SB3 and EnvPool as `gymnasium.vector.VectorEnv`.

A VecEnv of Stable-Baselines3 is recognised by its methods; SB3 is not imported. It resets in the same step
and returns `terminal_observation`. EnvPool's environments are named `envpool:Id` and reset in the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mission_gym.data import Array

_SB3_KEYS = ("TimeLimit.truncated", "terminal_observation")


def is_sb3(made: Any) -> bool:
    """Return whether an object has the methods of SB3's VecEnv."""
    return all(hasattr(made, name) for name in ("step_async", "step_wait", "env_method", "num_envs"))


class FromSB3(VectorEnv[Any, Any, Any]):
    """A VecEnv of SB3; truncation is its `TimeLimit.truncated`."""

    def __init__(self, vec: Any) -> None:
        self._vec = vec
        spaces = (vec.observation_space, vec.action_space)
        _set_spaces(self, int(vec.num_envs), spaces, AutoresetMode.SAME_STEP)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments; SB3 gives environment i the seed plus i."""
        if isinstance(seed, int):
            self._vec.seed(seed)
        obs = self._vec.reset()
        infos: dict[str, Any] = {}
        for row, info in enumerate(self._vec.reset_infos):
            infos = self._add_info(infos, info, row)
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step all environments."""
        obs, reward, done, rows = self._vec.step(np.asarray(actions))
        truncated = np.array([bool(info.get("TimeLimit.truncated")) for info in rows]) & done
        infos: dict[str, Any] = {}
        for row, info in enumerate(rows):
            kept = {key: value for key, value in info.items() if key not in _SB3_KEYS}
            if done[row]:
                kept = {"final_obs": info["terminal_observation"], "final_info": kept}
            infos = self._add_info(infos, kept, row)
        return obs, np.asarray(reward, np.float64), done & ~truncated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self._vec.close()


class FromEnvPool(VectorEnv[Any, Any, Any]):
    """A pool of EnvPool. It takes seeds only when it is made, so a seeded reset makes a new one."""

    def __init__(self, envpool: Any, task_id: str, num_envs: int, kwargs: dict[str, Any]) -> None:
        options = {"env_type": "gymnasium", "num_envs": num_envs, **kwargs}
        self._remake: Callable[..., Any] = partial(envpool.make, task_id, **options)
        self._pool = self._remake()
        spec = self._pool.spec
        spaces = (spec.gymnasium_observation_space, spec.gymnasium_action_space)
        _set_spaces(self, num_envs, spaces, AutoresetMode.NEXT_STEP)
        self.spec = EnvSpec(f"envpool/{task_id}", max_episode_steps=spec.config.max_episode_steps)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments; environment i gets the seed plus i, or its entry of the list."""
        seeds = [seed + row for row in range(self.num_envs)] if isinstance(seed, int) else seed or [None]
        if None not in seeds:
            self._pool.close()
            self._pool = self._remake(seed=seeds)
        obs, infos = self._pool.reset()
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step all environments."""
        obs, reward, terminated, truncated, infos = self._pool.step(np.asarray(actions))
        return obs, np.asarray(reward, np.float64), terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool."""
        self._pool.close()


def _set_spaces(
    env: VectorEnv[Any, Any, Any], num_envs: int, spaces: tuple[Any, Any], mode: AutoresetMode
) -> None:
    env.num_envs, env.metadata = num_envs, {"autoreset_mode": mode}
    env.single_observation_space, env.single_action_space = spaces
    env.observation_space, env.action_space = (batch_space(space, num_envs) for space in spaces)
