"""Stages in vectors: equal transitions on every backend, new environments only for new arguments."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe, probe_vector
from mission_gym.env.stages import Stages, StageVariant
from mission_gym.errors import EnvFailure, UsageError
from mission_gym.streams import choose_earlier, episode_seed
from mission_gym.vector.base import Vector
from mission_gym.vector.batched import BatchedVec
from mission_gym.vector.record import Limits, VectorOptions
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.threads import ThreadedVec
from mission_gym.vector.workers import WorkersVec
from stage_toys import StagedVector

KINDS = {"serial": SerialVec, "workers": WorkersVec, "threads": partial(WorkersVec, kind=ThreadedVec)}


def make_stages(
    *stages: tuple[dict[str, Any], dict[str, Any] | None], env: str = "Staged", earlier: float = 0.0
) -> Stages:
    made: list[StageVariant] = []
    for kwargs, options in stages:
        request = EnvRequest(f"stage_toys:{env}", kwargs)
        same = [each.factory for each in made if each.request == request]
        made.append(StageVariant(request, same[0] if same else make_factory(request), options))
    return Stages(tuple(made), earlier)


def make(kind: str, stages: Stages, num_envs: int = 3, max_restarts: int = 0) -> Vector:
    factory = stages.variants[0].factory
    spec = probe(factory, "toy")
    seed_of = partial(episode_seed, 1, "train")
    options = VectorOptions(
        stages=stages, num_workers=2 if kind == "workers" else None, limits=Limits(max_restarts=max_restarts)
    )
    return KINDS[kind](factory, spec, num_envs, seed_of, options)


def record(vec: Vector, entries: dict[int, int], num_steps: int) -> list[Any]:
    """What it shows and tells in so many steps; entries: the stage that is entered before a step."""
    seen: list[Any] = []
    vec.enter_stage(entries.get(-1, 0))
    seen.append([leaf.copy() for leaf in vec.reset().obs])
    for number in range(num_steps):
        if number in entries:
            vec.enter_stage(entries[number])
        batch = vec.step(np.full(vec.num_envs, number % 2))
        seen.append([*(leaf.copy() for leaf in batch.obs), batch.reward.copy(), batch.episodes])
    return seen


STAGES = make_stages(
    ({"bots": 1}, None), ({"bots": 1}, {"level": 4}), ({"bots": 3}, {"level": 1}), earlier=0.4
)


@pytest.mark.parametrize("kind", ["workers", "threads"])
def test_backends_give_equal_transitions(kind: str) -> None:
    entries = {3: 1, 12: 2}
    with make("serial", STAGES) as one, make(kind, STAGES) as two:
        expected, found = record(one, entries, 60), record(two, entries, 60)
    for mine, theirs in zip(expected, found, strict=True):
        for left, right in zip(mine, theirs, strict=True):
            np.testing.assert_equal(left, right)
    stages = [episode.stage for _, _, episodes in expected[1:] for episode in episodes]
    assert set(stages) == {0, 1, 2}


def test_an_episode_keeps_its_stage_and_the_next_one_is_of_the_stage_entered() -> None:
    with make("serial", make_stages(({"bots": 1}, None), ({"bots": 3}, {"level": 2}))) as vec:
        seen = record(vec, {2: 1}, 12)
    shown = [obs[0, :2].tolist() for obs, *_ in seen]
    assert shown == [[1, 0]] * 5 + [[3, 2]] * 8
    assert [
        (each.stage, each.ret) for _, _, episodes in seen[1:] for each in episodes if each.env_id == 0
    ] == [(0, 2.0), (1, 9.0)]


def test_environments_are_built_anew_for_other_arguments_alone() -> None:
    stages = make_stages(({"bots": 1}, None), ({"bots": 1}, {"level": 4}), ({"bots": 3}, None))
    with make("serial", stages, 1) as vec:
        assert isinstance(vec, SerialVec)
        vec.reset()
        first = vec.envs[0]
        for stage, is_same in ((1, True), (2, False)):
            vec.enter_stage(stage)
            for _ in range(5):
                vec.step(np.zeros(1, np.int64))
            assert (vec.envs[0] is first) is is_same


@pytest.mark.parametrize("kind", list(KINDS))
def test_states_come_back_in_their_stages(kind: str) -> None:
    entries = {3: 1, 12: 2}
    with make("serial", STAGES) as straight:
        expected = record(straight, entries, 40)
    with make(kind, STAGES) as vec:
        record(vec, entries, 23)
        states = vec.state()
    assert {state.stage for state in states} > {2}
    with make(kind, STAGES) as vec:
        vec.enter_stage(2)
        batch, ways = vec.restore(states)
        assert ways == ["replay"] * 3
        for number in range(23, 40):
            batch = vec.step(np.full(3, number % 2))
            np.testing.assert_equal(batch.obs[0], expected[number + 1][0])


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_stage_that_can_not_be_built_costs_restarts_and_then_says_so(kind: str) -> None:
    stages = make_stages(({"bots": 1, "fail": 2}, None), ({"bots": 2, "fail": 2}, None))
    with make(kind, stages, 1, max_restarts=1) as vec:
        vec.enter_stage(1)
        with pytest.raises(
            EnvFailure, match=r"building it for stage 2 failed: .*2 bots are too many"
        ) as caught:
            vec.reset()
    assert caught.value.facts is not None
    assert caught.value.facts["stage"] == 1


def test_a_process_that_dies_while_a_stage_is_built_is_replaced(tmp_path: Path) -> None:
    stages = make_stages(
        ({"folder": str(tmp_path)}, None), ({"folder": str(tmp_path), "bots": 2}, None), env="Fatal"
    )
    with make("workers", stages, 2, max_restarts=5) as vec:
        seen = record(vec, {2: 1}, 12)
        assert vec.num_restarts == 1
    assert seen[-1][0][:, 0].tolist() == [2.0, 2.0]


def test_the_share_of_earlier_stages() -> None:
    drawn = [choose_earlier(episode_seed(0, "train", 0, number), 2, 0.25) for number in range(4000)]
    shares = np.bincount(drawn) / len(drawn)
    np.testing.assert_allclose(shares, [0.125, 0.125, 0.75], atol=0.02)
    assert {choose_earlier(seed, 0, 0.9) for seed in range(50)} == {0}
    assert {choose_earlier(seed, 3, 0.0) for seed in range(50)} == {3}


def make_batched(stages: Stages, mode: str = "") -> BatchedVec:
    spec = probe_vector(StagedVector, "toy")
    return BatchedVec(StagedVector(3, mode=mode), spec, partial(episode_seed, 1, "train"), stages)


def test_a_batch_that_leaves_its_resets_to_us_takes_options_by_row() -> None:
    stages = make_stages(({}, None), ({}, {"level": 4}), ({}, {"level": 2}), earlier=0.4)
    with make_batched(stages) as vec:
        seen = record(vec, {-1: 2, 6: 1}, 60)
        states = vec.state()
    levels = {0: 0, 1: 4, 2: 2}
    shown = [obs[:, 1] for obs, *_ in seen]
    chosen = [episode for _, _, episodes in seen[1:] for episode in episodes]
    for episode in chosen:
        wanted = 2 if episode.number == 0 else 1
        if episode.number != 1:  # the second began while the run was in stage 3, in some rows
            assert episode.stage == choose_earlier(
                episode_seed(1, "train", episode.env_id, episode.number), wanted, 0.4
            )
        last = 5 * (episode.number + 1) - 1
        assert shown[last][episode.env_id] == levels[episode.stage]
    assert {episode.stage for episode in chosen} == {0, 1, 2}
    assert [state.stage for state in states] == [
        {v: k for k, v in levels.items()}[level] for level in shown[-1]
    ]


def test_a_batch_that_resets_itself_can_not_enter_stages() -> None:
    stages = make_stages(({}, None), ({}, {"level": 4}))
    with pytest.raises(UsageError, match=r"resets its rows by itself \(autoreset_mode SameStep\)"):
        make_batched(stages, "SameStep")
    make_batched(Stages(stages.variants[1:]), "SameStep").close()
