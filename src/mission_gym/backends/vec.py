"""`make_vec`: any environment as a `gymnasium.vector.VectorEnv`, on any backend."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mission_gym.backends import BACKENDS, load_backend
from mission_gym.backends.record import Backend, Source
from mission_gym.backends.workers import look_in_child
from mission_gym.errors import UsageError, nearest
from mission_gym.procs import usable_cores
from mission_gym.vector.restarts import Limits

if TYPE_CHECKING:  # what loads NumPy or Gymnasium is imported where it is used: workers start before
    from gymnasium.vector import AutoresetMode

    from mission_gym.env.factory import Factory, VectorEnv

_PROBE_S = 0.5  # random steps of a throw-away instance, in a child
# Below this a message to a worker costs more than the step (two cores, 8 to 32 environments).
_CHEAP_STEP_S = 40e-6


def make_vec(
    env: str | Factory | Sequence[Factory],
    num_envs: int | None = None,
    *,
    backend: str = "auto",
    env_kwargs: dict[str, Any] | None = None,
    autoreset_mode: str | AutoresetMode | None = None,
    timeout_s: float = 60.0,
    max_restarts: int = 5,
    num_workers: int | None = None,
) -> VectorEnv:
    """Make a vector environment from an id, a callable or a list of callables.

    num_envs: by default the length of the list, else 1. backend: `serial` in this process, `workers` in
    several others, `threads` in one other, `batched` for the environment's own vector form; `auto` measures a
    throw-away instance in a child. autoreset_mode: a name, Gymnasium's enum or its value; None means
    next-step, as in Gymnasium, or what a vector form declares. timeout_s: of a step, before its worker is
    replaced. max_restarts: of an environment without a finished episode in between; an episode that a failure
    broke off shows as truncated. num_workers: one per usable core by default.
    """
    if backend not in ("auto", *BACKENDS):
        known = ("auto", *BACKENDS)
        raise UsageError(
            f"unknown backend {backend!r}{nearest(backend, known)}; use one of {', '.join(known)} [backend]"
        )
    count = _count_envs(env, num_envs)
    record = None if backend == "auto" else load_backend(backend)
    with ExitStack() as undo:
        early: dict[str, Any] = {}
        if record is not None and record.start_early is not None:
            num_processes = min(count, record.count_processes(num_workers or usable_cores()))
            early["spares"] = record.start_early(num_processes)
            undo.callback(early["spares"].close)
        from gymnasium.vector import AutoresetMode

        from mission_gym.vector.adapter import GymVector

        mode = None if autoreset_mode is None else _find_mode(autoreset_mode)
        source = replace(
            _make_source(env, count, env_kwargs or {}),
            num_workers=num_workers,
            limits=Limits(timeout_s, max_restarts),
        )
        if record is None:
            spec, step_s = look_in_child(source, _PROBE_S, bare=True)
            record = _choose(count, step_s)
        elif record.own_vector_form:
            return _make_own_form(source, count, mode)
        else:
            spec, _ = record.look(source, bare=True)
        make = partial(record.make_vector, source, num_envs=count, **early)
        made = GymVector(make, spec, count, mode or AutoresetMode.NEXT_STEP)
        undo.pop_all()
        return made


def _count_envs(env: str | Factory | Sequence[Factory], num_envs: int | None) -> int:
    if not isinstance(env, str) and not callable(env):
        if num_envs not in (None, len(env)):
            raise UsageError(
                f"num_envs={num_envs} for a list of {len(env)} callables; leave it out [num_envs]"
            )
        num_envs = len(env)
    count = 1 if num_envs is None else num_envs
    if count < 1:
        raise UsageError(f"num_envs={count}; at least one environment is needed [num_envs]")
    return count


def _make_source(env: str | Factory | Sequence[Factory], num_envs: int, kwargs: dict[str, Any]) -> Source:
    from mission_gym.env.factory import EnvRequest, make_factory

    if isinstance(env, str):
        request = EnvRequest(env, kwargs)
        return Source(env, make_factory(request), request)
    given = [env] * num_envs if callable(env) else list(env)
    name = getattr(given[0], "__name__", type(given[0]).__name__)
    return Source(name, [make_factory(partial(item, **kwargs) if kwargs else item) for item in given])


def _choose(num_envs: int, step_s: float | None) -> Backend:
    """Workers for all but cheap steps, single environments and single cores."""
    cheap = step_s is not None and step_s < _CHEAP_STEP_S
    return load_backend("serial" if cheap or num_envs == 1 or usable_cores() == 1 else "workers")


def _make_own_form(source: Source, num_envs: int, mode: AutoresetMode | None) -> VectorEnv:
    from mission_gym.backends.batched import find_factory

    made = find_factory(source)(num_envs)
    declared = made.metadata.get("autoreset_mode")
    if mode is not None and mode != declared:
        made.close()
        raise UsageError(
            f"autoreset_mode={mode.name.lower()} but {source.env_id!r} declares "
            f"{getattr(declared, 'name', declared)}; give the declared one, or none [autoreset_mode]"
        )
    return made


def _find_mode(mode: str | AutoresetMode) -> AutoresetMode:
    from gymnasium.vector import AutoresetMode

    if isinstance(mode, AutoresetMode):
        return mode
    names = {each.name.lower(): each for each in AutoresetMode}
    known = names | {each.value: each for each in AutoresetMode}
    if mode not in known:
        raise UsageError(
            f"unknown autoreset_mode {mode!r}{nearest(mode, names)}; "
            f"use one of {', '.join(names)} [autoreset_mode]"
        )
    return known[mode]
