"""The table of backends: what each record says, and how an environment is looked at first."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import pytest

import coroutine_toys as toys
from mission_gym.env.coroutines import has_coroutines
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.stages import Stages, StageVariant
from mission_gym.errors import UsageError, WorkerDied
from mission_gym.run.config import schema
from mission_gym.vector import pool
from mission_gym.vector.backends import (
    BACKENDS,
    _as_coroutines,
    load_backend,
    load_default,
    load_for_cluster,
    load_for_coroutines,
    load_rivals,
)
from mission_gym.vector.record import Limits, Source, VectorOptions


class Crashing(gym.Env[Any, Any]):
    def __init__(self) -> None:
        os._exit(3)


class Awaited(toys.Awaited):
    def __init__(self) -> None:
        super().__init__("CartPole-v1")


def source_of(name: str) -> Source:
    request = EnvRequest(name)
    options = VectorOptions(num_workers=2, limits=Limits(max_restarts=1))
    return Source(name, make_factory(request), request, options)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_record_bears_its_name_and_makes_a_vector(name: str) -> None:
    record = load_backend(name)
    source = source_of("test_records:Awaited" if record.for_coroutines else "CartPole-v1")
    assert record.name == name
    spec, pace = record.probe(source)
    assert (spec.action.nvec, pace) == ((2,), None)
    assert record.takes(spec)
    with record.make_vector(source, spec, 4, lambda env_id, episode: env_id + episode) as vec:
        assert vec.reset().env_ids.tolist() == [0, 1, 2, 3]
        assert vec.rows_step_alone != record.own_vector_form
        assert len(vec.pids()) == (2 if record.needs_cluster else record.count_processes(2))
    assert not record.acts_itself or not record.runs_here


def test_what_is_chosen_where_nothing_was_asked_for() -> None:
    assert load_default(trusted=True).runs_here
    assert not load_default(trusted=False).runs_here
    plain, awaited = (
        load_backend("workers").probe(source_of(name))[0] for name in ("CartPole-v1", "test_records:Awaited")
    )
    assert all(not each.runs_here and not each.own_vector_form for each in load_rivals(awaited))
    assert [each.name for each in load_rivals(plain)] == ["workers", "threads"]
    assert [each.name for each in load_rivals(awaited)] == ["workers", "threads", "aio"]
    assert load_for_coroutines().name == "aio"
    assert load_for_cluster().name == "ray"


def test_workers_are_named_where_their_number_may_be_chosen() -> None:
    for record in map(load_backend, BACKENDS):
        names = {"workers": "3 workers", "ray": "3 workers", "aio": "3 event loops"}
        assert record.name_workers(3) == names.get(record.name, "")
        here = 0 if record.needs_cluster else 3
        assert record.count_processes(3) == (here if record.chooses_workers else record.processes)
    assert load_backend("workers").chooses_workers


def test_the_flag_says_what_every_record_says_of_itself() -> None:
    (field,) = [field for field in schema().fields if field.path == "vector.vector"]
    assert all(f"{name} {load_backend(name).text}" in field.description for name in BACKENDS)


@pytest.mark.parametrize("name", ["workers", "threads", "aio"])
def test_what_anyone_wrote_is_looked_at_in_a_child(name: str) -> None:
    with pytest.raises(WorkerDied, match="the process that probed the environment ended with code 3"):
        load_backend(name).probe(source_of("test_records:Crashing"))


def test_a_trusted_environment_needs_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def refuse(source: Source, measure_s: float, bare: bool) -> Any:
        asked.append(measure_s)
        raise WorkerDied("a child was started")

    monkeypatch.setattr(pool, "probe_in_worker", refuse)
    look = load_backend("workers").probe
    assert look(source_of("CartPole-v1"))[0].env_id == "CartPole-v1"
    pace = look(source_of("CartPole-v1"), 0.1)[1]
    assert pace is not None
    assert pace.num_steps > 100
    with pytest.raises(WorkerDied):
        look(Source("mine", make_factory(lambda: gym.make("CartPole-v1"))))
    assert asked == [0.0]


def test_callables_have_no_vector_form() -> None:
    with pytest.raises(UsageError, match="a callable environment can't be batched"):
        load_backend("batched").probe(Source("mine", Crashing))


def test_stages_on_event_loops_are_coroutines_too() -> None:
    requests = [EnvRequest("coroutine_toys:Both", {"shown": shown}) for shown in (0, 1, 0)]
    shared = make_factory(requests[0])
    factories = (shared, make_factory(requests[1]), shared)
    stages = Stages(tuple(StageVariant(*pair) for pair in zip(requests, factories, strict=True)))
    source = _as_coroutines(Source("both", shared, options=VectorOptions(stages=stages)))
    assert source.options.stages is not None
    made = [variant.factory for variant in source.options.stages.variants]
    assert made[0] is made[2] is source.factory  # else a slot would build its environment twice
    assert all(has_coroutines(factory()) for factory in made)
