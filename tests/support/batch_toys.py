"""Toys side by side as a vector environment with a state: `batch_toys:make_many` with a toy."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Many(SyncVectorEnv):
    """Rows of one toy, which can be saved: all that a toy holds is data, but for its spaces and functions."""

    def get_state(self) -> dict[str, Any]:
        kept = [
            {key: value for key, value in vars(env).items() if not callable(value) and not _is_space(value)}
            for env in self.envs
        ]
        return {"bytes": np.frombuffer(pickle.dumps((kept, self._autoreset_envs)), np.uint8)}

    def set_state(self, state: dict[str, Any]) -> None:
        kept, self._autoreset_envs = pickle.loads(state["bytes"].tobytes())
        for env, values in zip(self.envs, kept, strict=True):
            vars(env).update(values)


def find(toy: str, **kwargs: Any) -> Callable[[], gym.Env[Any, Any]]:
    """What builds one toy. length: of its episodes, where they are not to have their own."""
    module, _, name = toy.partition(":")
    return partial(_build, getattr(importlib.import_module(module), name), **kwargs)


def make_one(toy: str, **kwargs: Any) -> gym.Env[Any, Any]:
    return find(toy, **kwargs)()


def make_many(num_envs: int, toy: str, mode: str = "SAME_STEP", **kwargs: Any) -> Many:
    return Many([find(toy, **kwargs)] * num_envs, autoreset_mode=AutoresetMode[mode])


def _build(make: Any, length: int | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    env: gym.Env[Any, Any] = make(**kwargs)
    if length is not None:
        vars(env)["length"] = length
    return env


def _is_space(value: Any) -> bool:
    return isinstance(value, gym.Space)
