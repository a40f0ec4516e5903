"""A policy's memory lasts from step to step and from segment to segment, and ends with its episode: in every
collector, in played episodes and over a checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collector_toys import Counted, CountingPolicy, Failing
from collector_toys import memory_seed_of as seed_of
from collectors import KINDS, collecting, never
from mission_gym.data import Block, EnvSpec, Weights
from mission_gym.env.probe import probe
from mission_gym.plan.costs import measure_collect
from mission_gym.rollout.blocks import clear_block, make_block, pack_block, unpack_block
from mission_gym.rollout.play import play, seed_of_suite
from mission_gym.run.config import resolve
from mission_gym.run.evaluation import policy_actor
from mission_gym.run.open import LoadedPolicy
from mission_gym.run.snapshot import restore_snapshot, take_snapshot
from mission_gym.store.checkpoints import Checkpoint
from mission_gym.vector.serial import SerialVec

T, S = 8, 4
HOW = [kind for kind in KINDS if kind != "aio"]


@pytest.fixture
def spec() -> EnvSpec:
    return probe(Counted, "counted")


def remember(how: str, spec: EnvSpec, env: type[Counted] = Counted) -> Any:
    """A collector of that kind whose policy has memory, and its block."""
    return collecting(how, env, spec, S, T, make_policy=CountingPolicy, seeds=seed_of)


def check(block: Block, begun: dict[int, int]) -> None:
    """Every action was right, and each column begins with the steps that its episode had made."""
    assert (block.reward == 1.0).all()
    for column, env_id in enumerate(block.env_ids.tolist()):
        assert block.state[0][column, 0] == 100 + begun[env_id]
        states = {final.t: final.state[0][0] for final in block.finals if final.column == column}
        assert list(states) == np.flatnonzero(block.truncated[:, column]).tolist()
        for t in range(T):
            begun[env_id] += 1
            if block.truncated[t, column]:  # the memory from before the reset
                assert states[t] == 100 + begun[env_id]
                begun[env_id] = 0


@pytest.mark.parametrize("how", HOW)
def test_memory_lasts_from_segment_to_segment_and_ends_with_the_episode(how: str, spec: EnvSpec) -> None:
    with remember(how, spec) as (collector, block):
        measure_collect(collector, Weights(0, {}), 5, num_blocks=2)  # leaves no trace here either
        begun = dict.fromkeys(range(S), 0)
        for number in range(4):
            assert collector.fill(block, number, never)
            check(block, begun)
            clear_block(block)


@pytest.mark.parametrize("how", [how for how in HOW if not how.startswith("first_ready")])
def test_memory_is_part_of_a_checkpoint(how: str, spec: EnvSpec) -> None:
    """Stopped before the second block and inside the third, each time gone on with in other processes."""
    learner: Any = SimpleNamespace(
        step=0, arrays=dict, load_arrays=lambda arrays: None, behind=lambda: None, extras=dict,
        has_extras=False,
    )  # fmt: skip
    begun = dict.fromkeys(range(S), 0)
    stored: Checkpoint | None = None
    for number, polls in enumerate((0, 3, None)):
        with remember(how, spec) as (collector, block):
            if stored is None:
                collector.start()
            else:
                assert restore_snapshot(stored, learner, collector, [block]).exact
            assert collector.fill(block, number, never)
            check(block, begun)
            clear_block(block)
            if polls is not None:
                asked = iter([False] * polls)
                collector.fill(block, number + 1, lambda asked=asked: next(asked, True))
                snapshot = take_snapshot(learner, collector, [block], {})
                assert snapshot.step == block.num_filled
                stored = Checkpoint(0, Path(), snapshot.policy, snapshot.state, snapshot.state_json, {})


@pytest.mark.parametrize("how", HOW)
def test_after_a_failure_the_memory_is_that_before_the_lost_step(how: str, spec: EnvSpec) -> None:
    with remember(how, spec, Failing) as (collector, block):
        collector.start()
        assert collector.fill(block, 0, never)
        lost = np.argwhere(~block.valid).tolist()
        assert lost
        states = {(final.t, final.column): final.state[0][0] for final in block.finals}
        for t, column in lost:
            assert states[t, column] == 102
            assert t == 0 or states[t - 1, column] == 102
        again = make_block(spec, T, S, state=collector.memory)
        unpack_block(again, pack_block(block))
        assert {(final.t, final.column): final.state[0][0] for final in again.finals} == states


@pytest.mark.parametrize("how", ["workers", "first_ready"])
def test_after_the_death_of_a_worker_the_memory_is_the_initial_one(how: str, spec: EnvSpec) -> None:
    with remember(how, spec) as (collector, block):
        collector.start()
        os.kill(collector.vec.pids()[0], signal.SIGKILL)
        assert collector.fill(block, 0, never)
        lost = np.argwhere(~block.valid).tolist()
        assert [env_id for _, env_id in lost] == [0, 1] or how == "first_ready"
        for t, column in lost:
            (state,) = [each.state for each in block.finals if (each.t, each.column) == (t, column)]
            assert state[0].tolist() == [100]


def test_a_column_that_could_not_be_restored_has_the_initial_memory(spec: EnvSpec) -> None:
    with remember("serial", spec) as (collector, block):
        collector.start()
        collector.fill(block, 0, never)
        collector.memory[0][:] = 7
        collector.reset_memory([1])
        assert collector.memory[0][:, 0].tolist() == [7, 100, 7, 7]
        again = make_block(spec, T, S, state=collector.memory)
        unpack_block(again, pack_block(block))
        np.testing.assert_array_equal(again.state[0], block.state[0])


def test_played_episodes_keep_memory(spec: EnvSpec) -> None:
    seeds = [1, 2, 3, 4, 5]
    with SerialVec(Counted, spec, 2, seed_of_suite(seeds, 2)) as vec:
        episodes = play(vec, policy_actor(CountingPolicy(), spec), spec, 5, explore=False)
    assert episodes is not None
    assert [(episode.ret, episode.length) for episode in episodes] == [(3 + s % 5, 3 + s % 5) for s in seeds]


def test_predict_takes_and_returns_memory(spec: EnvSpec) -> None:
    opened: Any = SimpleNamespace(
        environment=SimpleNamespace(spec=spec),
        step=0,
        policy=CountingPolicy(),
        config=resolve("Env-v0", {}).config,
        run=None,
    )
    policy = LoadedPolicy(opened)
    action, state = policy.predict(np.zeros(1, np.float32))
    assert action == 0
    action, state = policy.predict(np.zeros(1, np.float32), state)
    assert action == 1
    assert state[0].tolist() == [[102]]
    both = tuple(np.repeat(array, 2, axis=0) for array in state)
    actions, state = policy.predict(np.zeros((2, 1), np.float32), both, np.array([False, True]))
    assert actions.tolist() == [0, 0]
    assert state[0].tolist() == [[103], [101]]
