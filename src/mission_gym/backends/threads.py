"""Environments in one other process, a thread each: for those that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mission_gym.backends.record import Backend, Source
from mission_gym.backends.workers import collect_in_workers, look_in_child, make_workers
from mission_gym.vector import SERVICE

if TYPE_CHECKING:  # what loads NumPy or Gymnasium is imported where it is used: workers start before
    from mission_gym.data import EnvSpec
    from mission_gym.vector.base import SeedOf, Vector


def _make_vector(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **options: Any) -> Vector:
    from mission_gym.vector.threaded import ThreadedVec

    return make_workers(source, spec, num_envs, seed_of, kind=ThreadedVec, num_workers=1, **options)


BACKEND = Backend(
    "threads",
    look_in_child,
    _make_vector,
    "in one other (for environments that wait)",
    user_code="child",
    processes=1,
    for_waiting=True,
    turn_s=30e-6,
    acts_itself=True,
    make_collector=collect_in_workers,
    service=SERVICE,
)
