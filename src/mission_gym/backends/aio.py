"""Environments whose steps are coroutines, on event loops of other processes: hundreds of them that wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mission_gym.backends.record import Backend, Source
from mission_gym.backends.workers import collect_in_workers, look_in_child, make_workers
from mission_gym.vector import SERVICE

if TYPE_CHECKING:  # what loads NumPy or Gymnasium is imported where it is used: workers start before
    from mission_gym.data import EnvSpec
    from mission_gym.env.pace import Pace
    from mission_gym.vector.base import SeedOf, Vector


def _as_coroutines(source: Source) -> Source:
    """The same environments, in their coroutine form where they have both."""
    from mission_gym.env.factory import as_coroutines
    from mission_gym.env.stages import change_factories

    given = source.factory
    factories = [given] if callable(given) else given
    made, stages = change_factories(as_coroutines, factories, source.stages)
    return replace(source, factory=made[0] if callable(given) else made, stages=stages)


def _look(source: Source, measure_s: float = 0.0, *, bare: bool = False) -> tuple[EnvSpec, Pace | None]:
    return look_in_child(_as_coroutines(source), measure_s, bare=bare)


def _make_vector(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **options: Any) -> Vector:
    from mission_gym.vector.aio import AioVec

    how = {"num_workers": source.num_workers or 1} | options
    return make_workers(_as_coroutines(source), spec, num_envs, seed_of, kind=AioVec, **how)


BACKEND = Backend(
    "aio",
    _look,
    _make_vector,
    "on the event loop of one other or more (for coroutines)",
    user_code="child",
    processes=None,
    process_name="event loops",
    for_waiting=True,
    turn_s=12e-6,
    largest_group=8,  # one slow answer among them holds up the others
    most_groups=64,
    most_envs=4096,
    for_coroutines=True,
    acts_itself=True,
    make_collector=collect_in_workers,
    service=SERVICE,
)
