"""`make_vec`: any environment as a `gymnasium.vector.VectorEnv`, on any backend."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, cast

from mission_gym.errors import WrongValue, nearest
from mission_gym.procs import hold_fork_server
from mission_gym.vector import SERVICE
from mission_gym.vector.backends import (
    BACKENDS,
    find_vector_factory,
    load_backend,
    load_for_coroutines,
    probe_in_child,
)
from mission_gym.vector.record import Backend, Source
from mission_gym.vector.restarts import Limits

if TYPE_CHECKING:  # what loads NumPy or Gymnasium is imported where it is used: workers start before
    from gymnasium.vector import AutoresetMode

    from mission_gym.data import EnvSpec
    from mission_gym.env.factory import Factory, VectorEnv
    from mission_gym.env.pace import Pace
    from mission_gym.vector.adapter import ObservationMode

_PROBE_S = 0.2  # random steps of a throw-away instance, in a child
# What a vector step costs beside the environments' own steps (two cores): `bench vector` shows it.
_MESSAGE_S, _WORKER_S = 120e-6, 70e-6  # to send and to receive, and to wake each process
_THREAD_S = 40e-6  # to wake a thread of a row that waits, and to take its turn
_MOST_WORKERS = 64  # a process each
_CLEARLY = 0.85  # what other processes must promise of this one's time, which is sure


def make_vec(
    env: str | Factory | Sequence[Factory],
    num_envs: int | None = None,
    *,
    backend: str = "auto",
    env_kwargs: dict[str, Any] | None = None,
    autoreset_mode: str | AutoresetMode | None = None,
    observation_mode: ObservationMode = "same",
    timeout_s: float = 60.0,
    max_restarts: int = 5,
    num_workers: int | None = None,
) -> VectorEnv:
    """Make a vector environment from an id, a callable or a list of callables.

    num_envs: by default the length of the list, else 1. backend: `serial` in this process, `workers` in
    several others, `threads` in one other, `aio` on the event loops of others, `batched` for the
    environment's own vector form; `auto` measures a throw-away instance in a child. autoreset_mode: a name,
    Gymnasium's enum or its value; None means next-step, as in Gymnasium, or what a vector form declares.
    observation_mode: Gymnasium's `same` or `different` bounds of the observations, or a pair of the batched
    and the single space. timeout_s: of a step, before it is broken off, or its worker replaced. max_restarts:
    of an environment without a finished episode in between; an episode that a failure broke off shows as
    truncated. num_workers: one per usable core by default, one event loop; `auto` takes more of them for
    environments that wait and compute.
    """
    known = ("auto", *(name for name in BACKENDS if not load_backend(name).needs_cluster))
    if backend not in known:
        raise WrongValue(
            f"unknown backend {backend!r}{nearest(backend, known)}; use one of {', '.join(known)} [backend]"
        )
    count = _count_envs(env, num_envs)
    record = None if backend == "auto" else load_backend(backend)
    with hold_fork_server(SERVICE if record is None else record.service), ExitStack() as undo:
        from mission_gym.procs import Spares, usable_cores, with_companion

        early: dict[str, Any] = {}
        if record is not None and record.service is not None:
            num_processes = record.choose_processes(count, num_workers, usable_cores())
            early["spares"] = Spares(record.service, num_processes)
            undo.callback(early["spares"].close)
        from gymnasium.vector import AutoresetMode

        from mission_gym.vector.adapter import GymVector, check_observation_mode

        mode = None if autoreset_mode is None else _find_mode(autoreset_mode)

        def find(told: dict[str, Any]) -> Source:
            found = _make_source(env, count, env_kwargs or {}, told)
            return replace(found, num_workers=num_workers, limits=Limits(timeout_s, max_restarts))

        def look(told: dict[str, Any]) -> tuple[Source, Backend, EnvSpec]:
            source = find(told)
            if record is not None:
                return source, record, record.probe(source, bare=True)[0]
            spec, pace = probe_in_child(source, _PROBE_S, bare=True)
            awaited = pace if spec.coroutines == "only" else None
            if spec.coroutines == "offered":
                _, awaited = load_for_coroutines().probe(source, _PROBE_S, bare=True)
            chosen, processes = choose_for_pace(pace, count, num_workers, awaited)
            return replace(source, num_workers=processes), chosen, spec

        made: Any
        if record is not None and record.own_vector_form:
            made, companion = with_companion(lambda told: _make_own_form(find(told), count, mode))
        else:
            (source, chosen, spec), companion = with_companion(look)
            check_observation_mode(observation_mode, spec)
            spec = replace(spec, same_bounds=observation_mode == "same")
            make = partial(chosen.make_vector, source, num_envs=count, **early)
            made = GymVector(make, spec, count, mode or AutoresetMode.NEXT_STEP, observation_mode)
        if companion is not None:
            made.companion = companion  # at work until the vector is closed
        undo.pop_all()
        return cast("VectorEnv", made)


def _count_envs(env: str | Factory | Sequence[Factory], num_envs: int | None) -> int:
    if not isinstance(env, str) and not callable(env):
        if num_envs not in (None, len(env)):
            raise WrongValue(
                f"num_envs={num_envs} for a list of {len(env)} callables; leave it out [num_envs]"
            )
        num_envs = len(env)
    count = 1 if num_envs is None else num_envs
    if count < 1:
        raise WrongValue(f"num_envs={count}; at least one environment is needed [num_envs]")
    return count


def _make_source(
    env: str | Factory | Sequence[Factory], num_envs: int, kwargs: dict[str, Any], told: dict[str, Any]
) -> Source:
    from mission_gym.env.factory import EnvRequest, make_factory

    if isinstance(env, str):
        request = EnvRequest(env, kwargs, companion_kwargs=told)
        return Source(env, make_factory(request), request)
    given = [env] * num_envs if callable(env) else list(env)
    name = getattr(given[0], "__name__", type(given[0]).__name__)
    return Source(name, [make_factory(partial(item, **kwargs) if kwargs else item) for item in given])


def choose_for_pace(
    pace: Pace | None, num_envs: int, num_workers: int | None = None, awaited: Pace | None = None
) -> tuple[Backend, int | None]:
    """The backend whose vector steps should take the least time, and its processes.

    num_workers: as asked for. Environments that wait are threads of one process while it can compute for all
    of them, else workers, more of them than cores. awaited: the pace of their coroutines, where there are
    some; these share event loops.
    """
    from mission_gym.procs import usable_cores

    if pace is None or num_envs == 1:  # a step failed: it must not fail here
        return load_backend("serial" if pace is not None else "workers"), num_workers
    cores, cpu_s = usable_cores(), pace.step_s * pace.cpu_share
    crews = {num_workers or min(num_envs, cores)}
    if num_workers is None and pace.waits:
        busy = ceil(cores / max(pace.cpu_share, 1e-3))  # so many keep every core at work
        crews |= {min(num_envs, size, _MOST_WORKERS) for size in (busy, num_envs)}

    def cost(crew: int) -> float:
        own_s = max(pace.step_s * ceil(num_envs / crew), cpu_s * num_envs / min(cores, crew))
        return _MESSAGE_S + _WORKER_S * crew + own_s

    crew = min(crews, key=cost)
    costs = {"serial": pace.step_s * num_envs, "workers": cost(crew)}
    if pace.waits:
        message_s = _MESSAGE_S + _WORKER_S + _THREAD_S * num_envs
        costs["threads"] = message_s + max(pace.step_s, cpu_s * num_envs)
    processes = dict.fromkeys(costs, crew)
    if awaited is not None and awaited.waits:
        loops = load_for_coroutines()
        turn_s = awaited.step_s * awaited.cpu_share + loops.turn_s
        full = min(ceil(turn_s * num_envs / awaited.step_s), cores)  # so many have time for all of them
        size = loops.choose_processes(num_envs, num_workers or max(full, 1), cores)
        own_s = max(awaited.step_s, turn_s * ceil(num_envs / size))
        costs[loops.name], processes[loops.name] = _MESSAGE_S + _WORKER_S * size + own_s, size
    best = min(costs, key=lambda name: costs[name])
    best = best if costs[best] < _CLEARLY * costs["serial"] else "serial"
    return load_backend(best), processes[best]


def _make_own_form(source: Source, num_envs: int, mode: AutoresetMode | None) -> VectorEnv:
    made = find_vector_factory(source)(num_envs)
    declared = made.metadata.get("autoreset_mode")
    if mode is not None and mode != declared:
        made.close()
        raise WrongValue(
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
        raise WrongValue(
            f"unknown autoreset_mode {mode!r}{nearest(mode, names)}; "
            f"use one of {', '.join(names)} [autoreset_mode]"
        )
    return known[mode]
