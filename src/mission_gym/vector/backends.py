"""The table of backends, and the records of those that run on one machine.

A backend is a record and a line in `BACKENDS`. A record that lives in another module is named by a string and
loaded when it is used. Heavy libraries are imported inside functions, so that workers can start first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mission_gym.vector import SERVICE
from mission_gym.vector.record import Backend, Source

if TYPE_CHECKING:
    from mission_gym.data import EnvSpec
    from mission_gym.env.factory import VectorEnv
    from mission_gym.env.pace import Pace
    from mission_gym.vector.base import SeedOf, Vector
    from mission_gym.vector.serial import SerialVec

_TRUSTED_S = 0.05  # measuring time for trusted environments: it blocks this process, and steps are short


def _probe_here(source: Source, measure_s: float = 0.0, *, bare: bool = False) -> tuple[EnvSpec, Pace | None]:
    from mission_gym.env.probe import probe

    return probe(source.first, source.env_id, bare, source.max_sequence), None


def _make_serial(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **changes: Any) -> Vector:
    from mission_gym.vector.serial import SerialVec

    return SerialVec(source.factory, spec, num_envs, seed_of, replace(source.options, **changes))


def probe_in_child(
    source: Source, measure_s: float = 0.0, *, bare: bool = False
) -> tuple[EnvSpec, Pace | None]:
    """Probe the environment in a child process, which may crash or hang. A trusted environment is probed in
    this process: starting another one takes longer than the probe."""
    from mission_gym.env.factory import names_trusted
    from mission_gym.env.pace import time_steps
    from mission_gym.vector import pool

    if source.request is not None and names_trusted(source.request):
        spec, _ = _probe_here(source, bare=bare)
        return spec, time_steps(source.first, spec, min(measure_s, _TRUSTED_S)) if measure_s else None
    return pool.probe_in_worker(source, measure_s, bare)


def make_workers(
    source: Source,
    spec: EnvSpec,
    num_envs: int,
    seed_of: SeedOf,
    *,
    kind: type[SerialVec] | None = None,
    **changes: Any,
) -> Vector:
    """A vector of environments in worker processes. kind: how each worker steps them; None for serially."""
    from mission_gym.vector.serial import SerialVec
    from mission_gym.vector.workers import WorkersVec

    options = replace(source.options, **changes)
    return WorkersVec(source.factory, spec, num_envs, seed_of, options, kind or SerialVec)


def _make_threads(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **changes: Any) -> Vector:
    from mission_gym.vector.threads import ThreadedVec

    return make_workers(source, spec, num_envs, seed_of, kind=ThreadedVec, num_workers=1, **changes)


def _as_coroutines(source: Source) -> Source:
    """The same environments, in their coroutine form if they have both."""
    from mission_gym.env.factory import as_coroutines
    from mission_gym.env.stages import change_factories

    given = source.factory
    factories = [given] if callable(given) else given
    changed, stages = change_factories(as_coroutines, factories, source.options.stages)
    source = replace(source, factory=changed[0] if callable(given) else changed)
    return source.with_options(stages=stages)


def _probe_coroutines(
    source: Source, measure_s: float = 0.0, *, bare: bool = False
) -> tuple[EnvSpec, Pace | None]:
    return probe_in_child(_as_coroutines(source), measure_s, bare=bare)


def _make_aio(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **changes: Any) -> Vector:
    from mission_gym.vector.aio import AioVec

    changes = {"num_workers": source.options.num_workers or 1} | changes
    return make_workers(_as_coroutines(source), spec, num_envs, seed_of, kind=AioVec, **changes)


def find_vector_factory(source: Source) -> Callable[[int], VectorEnv]:
    """A function that builds the environment's own vector form with a given number of rows."""
    from mission_gym.env.factory import make_vector_factory
    from mission_gym.errors import UsageError

    if source.request is None:
        raise UsageError(
            "a callable environment can't be batched; name it by its id or as module:callable "
            "[--vector batched]"
        )
    return make_vector_factory(source.request)


def _probe_vector_form(
    source: Source, measure_s: float = 0.0, *, bare: bool = False
) -> tuple[EnvSpec, Pace | None]:
    from mission_gym.env.probe import probe_vector
    from mission_gym.vector.batched import BatchedVec

    factory = find_vector_factory(source)
    spec = probe_vector(factory, source.env_id, source.max_sequence)
    stages = source.options.stages
    if stages is not None:
        with BatchedVec(factory(1), spec, lambda row, episode: episode, stages) as vec:
            for stage in range(len(stages.variants)):
                vec.enter_stage(stage)
                vec.reset()
    return spec, None


def _make_batched(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **changes: Any) -> Vector:
    from mission_gym.vector.batched import BatchedVec

    options = replace(source.options, **changes)
    return BatchedVec(find_vector_factory(source)(num_envs), spec, seed_of, options.stages)


# The reference: environments in this process, one after the other.
SERIAL = Backend("serial", _probe_here, _make_serial, "steps in this process", user_code="here")

# For environments that compute: several processes with some environments each.
WORKERS = Backend(
    "workers",
    probe_in_child,
    make_workers,
    "in several others",
    user_code="child",
    processes=None,
    acts_itself=True,
    service=SERVICE,
)

# For environments that wait: one other process, with a thread for each environment.
THREADS = replace(
    WORKERS,
    name="threads",
    make_vector=_make_threads,
    text="in one other (for environments that wait)",
    processes=1,
    for_waiting=True,
    turn_s=30e-6,
    wake_s=10e-6,
)

# For environments whose steps are coroutines: hundreds of them on the event loops of other processes.
AIO = replace(
    WORKERS,
    name="aio",
    probe=_probe_coroutines,
    make_vector=_make_aio,
    text="on the event loop of one other or more (for coroutines)",
    process_name="event loops",
    for_waiting=True,
    turn_s=12e-6,
    largest_group=8,  # one slow answer delays the rest of its group
    most_groups=64,
    most_envs=4096,
    for_coroutines=True,
)

# For simulators that are vectorised themselves: the environment's own vector form, in this process.
BATCHED = Backend(
    "batched",
    _probe_vector_form,
    _make_batched,
    "takes a vector environment",
    user_code="here",
    own_vector_form=True,
    cpu_is_known=False,
)

BACKENDS: dict[str, Backend | str] = {
    "serial": SERIAL,
    "workers": WORKERS,
    "threads": THREADS,
    "aio": AIO,
    "batched": BATCHED,
    "ray": "mission_gym.ray.backend:BACKEND",
}


def load_backend(name: str) -> Backend:
    """The record of a backend in the table."""
    record = BACKENDS[name]
    if isinstance(record, str):
        module, _, attribute = record.partition(":")
        record = getattr(importlib.import_module(module), attribute)
        assert isinstance(record, Backend)
    return record


def load_default(*, trusted: bool) -> Backend:
    """The backend if none was requested: this process only if the environment's code is trusted."""
    return SERIAL if trusted else WORKERS


def load_for_coroutines() -> Backend:
    """The backend for environments whose steps are coroutines, if none was requested."""
    return next(each for each in map(load_backend, BACKENDS) if each.for_coroutines)


def load_for_cluster() -> Backend:
    """The backend that runs environments on other machines."""
    return next(each for each in map(load_backend, BACKENDS) if each.needs_cluster)


def load_rivals(spec: EnvSpec) -> tuple[Backend, ...]:
    """The backends that a plan may choose among for untrusted environments: those with child processes."""
    records = map(load_backend, BACKENDS)
    return tuple(each for each in records if each.user_code == "child" and each.takes(spec))
