"""`make_vec`: any environment as a `gymnasium.vector.VectorEnv`, on any backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
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
from mission_gym.vector.record import Backend, Limits, Source, VectorOptions

if TYPE_CHECKING:  # NumPy and Gymnasium are imported inside functions: workers start first
    from gymnasium.vector import AutoresetMode

    from mission_gym.data import EnvSpec
    from mission_gym.env.factory import Factory, VectorEnv
    from mission_gym.env.pace import Pace

_PROBE_S = 0.2  # for timing a throw-away instance in a child
_CLEARLY = 0.85  # other processes must be predicted to take this share of this process's time, or less


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

    num_envs: default is the length of the list, else 1.
    backend: `serial` in this process, `workers` in several others, `threads` in one other, `aio` on the event
    loops of others, `batched` for the environment's own vector form. `auto` times a throw-away instance.
    autoreset_mode: a name, Gymnasium's enum or its value. None: next-step, as in Gymnasium, or the mode that
    the environment's own vector form declares.
    timeout_s: time limit of a step; afterwards it is cancelled, or its worker is replaced.
    max_restarts: of an environment without a finished episode in between. An episode that fails is truncated.
    num_workers: default is one per usable core, or one event loop. `auto` may choose more of them for
    environments that both wait and compute.
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

        spares = None
        if record is not None and record.service is not None:
            spares = Spares(record.service, record.choose_processes(count, num_workers, usable_cores()))
            undo.callback(spares.close)
        from gymnasium.vector import AutoresetMode

        from mission_gym.vector.base import RowVector
        from mission_gym.vector.gym_vector import GymVector

        mode = None if autoreset_mode is None else _find_mode(autoreset_mode)
        options = VectorOptions(
            num_workers=num_workers, limits=Limits(timeout_s, max_restarts), spares=spares
        )

        def probe(companion_kwargs: dict[str, Any]) -> tuple[Source, Backend, EnvSpec]:
            source = _make_source(env, count, env_kwargs or {}, companion_kwargs, options)
            if record is not None:
                return source, record, record.probe(source, bare=True)[0]
            spec, pace = probe_in_child(source, _PROBE_S, bare=True)
            awaited = pace if spec.coroutines == "only" else None
            if spec.coroutines == "offered":
                _, awaited = load_for_coroutines().probe(source, _PROBE_S, bare=True)
            backends = map(load_backend, BACKENDS)
            chosen, processes = choose_for_pace(backends, pace, awaited, count, num_workers, usable_cores())
            return source.with_options(num_workers=processes), chosen, spec

        def open_own_form(companion_kwargs: dict[str, Any]) -> VectorEnv:
            source = _make_source(env, count, env_kwargs or {}, companion_kwargs, options)
            return _make_own_form(source, count, mode)

        made: Any
        if record is not None and record.own_vector_form:
            made, companion = with_companion(open_own_form)
            if companion is not None:
                made.companion = companion  # it ends with the vector
        else:
            (source, chosen, spec), companion = with_companion(probe)
            mode = mode or AutoresetMode.NEXT_STEP
            vec = chosen.make_vector(source, spec, count, _no_seed, infos=True, autoreset=mode.name.lower())
            assert isinstance(vec, RowVector)
            made = GymVector(vec, mode, companion)
        undo.pop_all()
        return cast("VectorEnv", made)


def _no_seed(env_id: int, episode: int) -> None:
    """Gymnasium seeds the first episode only; later ones continue with the environment's generator."""


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
    env: str | Factory | Sequence[Factory],
    num_envs: int,
    kwargs: dict[str, Any],
    companion_kwargs: dict[str, Any],
    options: VectorOptions,
) -> Source:
    from mission_gym.env.factory import EnvRequest, make_factory

    if isinstance(env, str):
        request = EnvRequest(env, kwargs, companion_kwargs=companion_kwargs)
        return Source(env, make_factory(request), request, options)
    given = [env] * num_envs if callable(env) else list(env)
    name = getattr(given[0], "__name__", type(given[0]).__name__)
    factories = [make_factory(partial(item, **kwargs) if kwargs else item) for item in given]
    return Source(name, factories, options=options)


def choose_for_pace(
    backends: Iterable[Backend],
    pace: Pace | None,
    awaited: Pace | None,
    num_envs: int,
    num_workers: int | None,
    cores: int,
) -> tuple[Backend, int | None]:
    """The backend whose vector steps are predicted to take the least time, and its number of processes.

    pace: of single environments; None if a step failed. awaited: of their coroutines, if they have some.
    num_workers: None for automatic. This process is chosen unless another backend is clearly faster.
    """
    records = [each for each in backends if not each.own_vector_form and not each.needs_cluster]
    here = next(each for each in records if each.runs_here)
    children = [each for each in records if not each.runs_here]
    if pace is None:  # it must not fail in this process
        return children[0], num_workers
    if num_envs == 1:
        return here, num_workers
    costs: dict[tuple[Backend, int], float] = {}
    for each in children:
        own = awaited if each.for_coroutines else pace
        if own is None or (each.for_waiting and not own.waits):
            continue
        sizes = each.list_processes(own, num_envs, cores)
        if num_workers is not None and each.chooses_workers:
            sizes = [num_workers]
        costs |= {(each, size): each.predict_step_s(own, num_envs, size, cores) for size in sizes}
    best, processes = min(costs, key=costs.__getitem__)
    if costs[best, processes] < _CLEARLY * here.predict_step_s(pace, num_envs, 1, cores):
        return best, processes
    return here, num_workers


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
