"""`make_vec`: any environment as a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gymnasium.vector import AutoresetMode

from mission_gym.env.factory import EnvRequest, Factory, VectorEnv, make_factory, make_vector_factory
from mission_gym.errors import UsageError, nearest
from mission_gym.vector.adapter import GymVector

_MODES = {mode.name.lower(): mode for mode in AutoresetMode}
_BACKENDS = ("auto", "serial", "batched")


def make_vec(
    env: str | Factory | Sequence[Factory],
    num_envs: int | None = None,
    *,
    backend: str = "auto",
    env_kwargs: dict[str, Any] | None = None,
    autoreset_mode: str | AutoresetMode = "same_step",
) -> VectorEnv:
    """Make a vector environment from an id, a callable or a list of callables.

    num_envs: by default the length of the list, else 1. backend: `auto` (serial), `serial`, or `batched`
    for the environment's own vector form, which has the auto-reset mode it declares.
    """
    if backend not in _BACKENDS:
        known = ", ".join(_BACKENDS)
        raise UsageError(
            f"unknown backend {backend!r}{nearest(backend, _BACKENDS)}; use one of {known} [backend]"
        )
    mode = _find_mode(autoreset_mode)
    kwargs = env_kwargs or {}
    if not isinstance(env, str) and not callable(env):
        if num_envs not in (None, len(env)):
            raise UsageError(
                f"num_envs={num_envs} for a list of {len(env)} callables; leave it out [num_envs]"
            )
        num_envs = len(env)
    count = 1 if num_envs is None else num_envs
    if count < 1:
        raise UsageError(f"num_envs={count}; at least one environment is needed [num_envs]")
    if backend == "batched":
        return _make_batched(env, count, kwargs, mode)
    if isinstance(env, str):
        return GymVector([make_factory(EnvRequest(env, kwargs))] * count, env, mode)
    factories = [env] * count if callable(env) else list(env)
    name = getattr(factories[0], "__name__", type(factories[0]).__name__)
    return GymVector([make_factory(partial(item, **kwargs)) for item in factories], name, mode)


def _make_batched(
    env: str | Factory | Sequence[Factory], num_envs: int, kwargs: dict[str, Any], mode: AutoresetMode
) -> VectorEnv:
    if not isinstance(env, str):
        raise UsageError(
            "a batched environment is made by its id or module:callable, not from callables [backend]"
        )
    made = make_vector_factory(EnvRequest(env, kwargs))(num_envs)
    declared = made.metadata.get("autoreset_mode")
    if declared != mode:
        made.close()
        raise UsageError(
            f"autoreset_mode={mode.name.lower()} but {env!r} declares {getattr(declared, 'name', declared)}; "
            "give the declared one [autoreset_mode]"
        )
    return made


def _find_mode(mode: str | AutoresetMode) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    if mode not in _MODES:
        raise UsageError(
            f"unknown autoreset_mode {mode!r}{nearest(mode, _MODES)}; "
            f"use one of {', '.join(_MODES)} [autoreset_mode]"
        )
    return _MODES[mode]
