"""`make_vec`: any environment as a `gymnasium.vector.VectorEnv`, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gymnasium.vector import AutoresetMode

from mission_gym.env.factory import EnvRequest, Factory, VectorEnv, make_factory, make_vector_factory
from mission_gym.env.probe import probe
from mission_gym.errors import UsageError, nearest
from mission_gym.procs import usable_cores
from mission_gym.vector.adapter import GymVector
from mission_gym.vector.base import RowVector
from mission_gym.vector.crew import Limits
from mission_gym.vector.probing import probe_in_worker
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.workers import WorkersVec

_MODES = {mode.name.lower(): mode for mode in AutoresetMode}
_BACKENDS = ("auto", "serial", "workers", "threads", "batched")
_PROBE_S = 0.5  # random steps of a throw-away instance, in a child
# Below this a message to a worker costs more than the step (two cores, 8 to 32 environments).
_CHEAP_STEP_S = 40e-6


def make_vec(
    env: str | Factory | Sequence[Factory],
    num_envs: int | None = None,
    *,
    backend: str = "auto",
    env_kwargs: dict[str, Any] | None = None,
    autoreset_mode: str | AutoresetMode = "same_step",
    timeout_s: float = 60.0,
    max_restarts: int = 5,
    num_workers: int | None = None,
) -> VectorEnv:
    """Make a vector environment from an id, a callable or a list of callables.

    num_envs: by default the length of the list, else 1. backend: `serial` in this process, `workers` in
    several others, `threads` in one other, `batched` for the environment's own vector form, which has the
    auto-reset mode it declares; `auto` measures a throw-away instance in a child. timeout_s: of a step,
    before its worker is replaced. max_restarts: of an environment without a finished episode in between;
    an episode that a failure broke off shows as truncated. num_workers: one per usable core by default.
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
        name, factories = env, [make_factory(EnvRequest(env, kwargs))] * count
    else:
        given = [env] * count if callable(env) else list(env)
        name = getattr(given[0], "__name__", type(given[0]).__name__)
        factories = [make_factory(partial(item, **kwargs) if kwargs else item) for item in given]
    if backend == "serial":
        spec = probe(factories[0], name, bare=True)
    else:
        measure_s = _PROBE_S if backend == "auto" else 0.0
        spec, step_s = probe_in_worker(factories[0], name, measure_s, bare=True)
        if backend == "auto":
            backend = _choose(count, step_s)
    make: Callable[..., RowVector]
    if backend == "serial":
        make = partial(SerialVec, factories, num_envs=count, max_restarts=max_restarts)
    else:
        limits = Limits(timeout_s, max_restarts)
        make = partial(
            WorkersVec,
            factories,
            num_envs=count,
            num_workers=num_workers,
            threads=backend == "threads",
            limits=limits,
        )
    return GymVector(make, spec, count, mode)


def _choose(num_envs: int, step_s: float | None) -> str:
    """Workers for all but cheap steps, single environments and single cores."""
    cheap = step_s is not None and step_s < _CHEAP_STEP_S
    return "serial" if cheap or num_envs == 1 or usable_cores() == 1 else "workers"


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
