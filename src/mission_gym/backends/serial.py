"""All environments in this process, one after the other: the reference."""

from __future__ import annotations

from typing import Any

from mission_gym.backends.record import Backend, Source
from mission_gym.data import EnvSpec
from mission_gym.env.pace import Pace
from mission_gym.env.probe import probe
from mission_gym.vector.base import SeedOf, Vector
from mission_gym.vector.serial import SerialVec


def _look(source: Source, measure_s: float = 0.0, *, bare: bool = False) -> tuple[EnvSpec, Pace | None]:
    return probe(source.first, source.env_id, bare, source.max_sequence), None


def _make_vector(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **options: Any) -> Vector:
    how = {"max_restarts": source.limits.max_restarts, "stages": source.stages} | options
    return SerialVec(source.factory, spec, num_envs, seed_of, **how)


BACKEND = Backend("serial", _look, _make_vector, "steps in this process", user_code="here")
