"""Environments in one other process, a thread each: for those that wait."""

from __future__ import annotations

from typing import Any

from mission_gym.backends.record import Backend, Source
from mission_gym.backends.workers import look_in_child
from mission_gym.data import EnvSpec
from mission_gym.vector.base import SeedOf, Vector
from mission_gym.vector.workers import WorkersVec


def _make_vector(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **options: Any) -> Vector:
    return WorkersVec(
        source.factory,
        spec,
        num_envs,
        seed_of,
        threads=True,
        limits=source.limits,
        log=source.log,
        **options,
    )


BACKEND = Backend(
    "threads",
    look_in_child,
    _make_vector,
    user_code="child",
    processes=1,
    for_waiting=True,
    acts_itself=True,
)
