"""Environments in several processes, some in each: for those that compute."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mission_gym.backends.record import (
    Backend,
    Collected,
    CollectRequest,
    Source,
    collect_here,
    make_blocks,
)
from mission_gym.vector import SERVICE

_TRUSTED_S = 0.05  # their steps are short, and hold up this process

if TYPE_CHECKING:  # what loads NumPy or Gymnasium is imported where it is used: workers start before
    from mission_gym.data import EnvSpec
    from mission_gym.env.pace import Pace
    from mission_gym.vector.base import SeedOf, Vector


def look_in_child(
    source: Source, measure_s: float = 0.0, *, bare: bool = False
) -> tuple[EnvSpec, Pace | None]:
    """Look at the environment in a process of its own: one that crashes or hangs harms nobody. A trusted one
    is looked at here: to start a process takes longer than all the rest."""
    from mission_gym.env.factory import names_trusted
    from mission_gym.env.pace import time_steps
    from mission_gym.env.probe import probe
    from mission_gym.vector import probing

    if source.request is not None and names_trusted(source.request):
        spec = probe(source.first, source.env_id, bare, source.max_sequence)
        return spec, time_steps(source.first, spec, min(measure_s, _TRUSTED_S)) if measure_s else None
    return probing.probe_in_worker(
        source.first,
        source.env_id,
        measure_s,
        bare=bare,
        max_restarts=source.limits.max_restarts,
        max_sequence=source.max_sequence,
    )


def make_workers(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **options: Any) -> Vector:
    """The vector of environments in other processes."""
    from mission_gym.vector.workers import WorkersVec

    how = {"num_workers": source.num_workers, "limits": source.limits, "log": source.log}
    return WorkersVec(source.factory, spec, num_envs, seed_of, stages=source.stages, **how | options)


def collect_in_workers(
    backend: Backend, source: Source, spec: EnvSpec, seed_of: SeedOf, asked: CollectRequest
) -> Collected:
    """The policy acts inside the workers; one that can't acts here, for those that are ready."""
    from mission_gym.rollout import remote
    from mission_gym.rollout.central import ReadyCollector
    from mission_gym.rollout.worker import CollectSetup, carve_shared

    make = partial(backend.make_vector, source, spec, asked.num_envs, seed_of)
    unit = asked.acting_rows // spec.num_agents  # environments that are acted for together
    vec: Any
    if asked.is_portable:
        setup = CollectSetup(
            asked.make_policy, asked.seed, asked.acting_rows, asked.num_steps, asked.num_blocks,
            asked.first_ready, asked.first_row,
        )  # fmt: skip
        carve = carve_shared(spec, setup, asked.num_envs)
        vec = make(unit=unit, service=remote.SERVICE, extra=setup, carve=carve)
        collector = remote.RemoteCollector(vec, spec, first_ready=asked.first_ready)
        return vec, collector, list(collector.blocks)
    if not backend.chooses_workers or unit == asked.num_envs:
        return collect_here(backend, source, spec, seed_of, asked)
    vec = make(unit=unit, first_ready=True)
    ready = ReadyCollector(vec, asked.make_policy(), spec, asked.seed, asked.acting_rows)
    return vec, ready, make_blocks(ready, asked)


BACKEND = Backend(
    "workers",
    look_in_child,
    make_workers,
    "in several others",
    user_code="child",
    processes=None,
    acts_itself=True,
    make_collector=collect_in_workers,
    service=SERVICE,
)
