"""The environment's own vector form, in this process: for simulators that are vectorised themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mission_gym.backends.record import Backend, Source
from mission_gym.data import EnvSpec
from mission_gym.env.factory import VectorEnv, make_vector_factory
from mission_gym.env.pace import Pace
from mission_gym.env.probe import probe_vector
from mission_gym.errors import UsageError
from mission_gym.vector.base import SeedOf, Vector
from mission_gym.vector.batched import BatchedVec


def find_factory(source: Source) -> Callable[[int], VectorEnv]:
    """What builds the vector form with the given number of rows."""
    if source.request is None:
        raise UsageError(
            "a callable environment can't be batched; one that can is made by its id or module:callable "
            "[--vector batched]"
        )
    return make_vector_factory(source.request)


def _look(source: Source, measure_s: float = 0.0, *, bare: bool = False) -> tuple[EnvSpec, Pace | None]:
    factory = find_factory(source)
    spec = probe_vector(factory, source.env_id, source.max_sequence)
    if source.stages is not None:
        with BatchedVec(factory(1), spec, lambda row, episode: episode, source.stages) as vec:
            for stage in range(len(source.stages.variants)):
                vec.enter_stage(stage)
                vec.reset()
    return spec, None


def _make_vector(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **options: Any) -> Vector:
    return BatchedVec(find_factory(source)(num_envs), spec, seed_of, source.stages, **options)


BACKEND = Backend(
    "batched",
    _look,
    _make_vector,
    "takes a vector environment",
    user_code="here",
    own_vector_form=True,
    cpu_is_known=False,
)
