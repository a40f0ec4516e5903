"""Agents as columns of a block: absent agents, advantages by hand, first-ready blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from collectors import assert_equal_blocks, collecting, never
from mission_gym.data import Block, Weights
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.learner.advantages import compute_gae
from mission_gym.policy import PolicySpec
from mission_gym.policy.torch_forms import ActorCritic, TorchPolicy, model_arrays
from mission_gym.rollout.blocks import clear_block

NUM_ENVS, T = 5, 30
FACTORY = make_factory(EnvRequest("agent_toys:Lives"))
SPEC = probe(FACTORY, "agents")


@contextmanager
def agents(
    kind: str = "serial", num_envs: int = NUM_ENVS, group: int = 2, **own: Any
) -> Iterator[tuple[Any, Block]]:
    with collecting(kind, FACTORY, SPEC, num_envs, T, group=group, **own) as (collector, block):
        collector.start()
        yield collector, block


def make_torch_policy() -> TorchPolicy:
    layout = PolicySpec(SPEC.leaves, SPEC.action, (8,), normalize_obs=False)
    policy = TorchPolicy(layout)
    policy.load(Weights(0, model_arrays(ActorCritic(layout, seed=1))))
    policy.load = lambda weights: None  # type: ignore[method-assign]
    return policy


def test_torch_acts_for_agents_in_workers_as_in_one_process() -> None:
    with (
        agents("ready", make_policy=make_torch_policy) as (one, mine),
        agents("serial", make_policy=make_torch_policy) as (other, theirs),
    ):
        for number in range(2):  # the second block begins in the middle of episodes
            for collector, block in ((one, mine), (other, theirs)):
                clear_block(block)
                assert collector.fill(block, number, never)
            assert_equal_blocks(mine, theirs)


def test_transitions_of_absent_agents_are_invalid_and_end_nothing() -> None:
    with agents() as (collector, block):
        collector.fill(block, 0, never)
        there = block.obs[0][:-1, :, 1] == 1.0
        np.testing.assert_array_equal(block.valid, there)
        assert not (block.terminated | block.truncated)[~there].any()
        assert (block.reward[~there] == 0).all()
        assert block.env_ids.tolist() == np.repeat(np.arange(NUM_ENVS), 3).tolist()
        # The guest alone is truncated, after four steps; V of its last observation is asked for.
        assert {final.column % 3 for final in block.finals} == {2}
        assert all(final.obs[0][1] == 1.0 for final in block.finals)


def test_advantages_if_one_agent_dies_and_another_continues() -> None:
    """One environment of 8 steps; gamma 0.5, lambda 1, V = 10 everywhere, reward 1 for each who is there."""
    gamma = 0.5
    with agents() as (collector, block):
        collector.fill(block, 0, never)
        reward = block.valid[:8, :3].astype(np.float64)
        ended = (block.terminated | block.truncated)[:8, :3]
        next_value = np.full((8, 3), 10.0)
        next_value[block.terminated[:8, :3]] = 0.0
        advantage, _ = compute_gae(reward, np.full((8, 3), 10.0), next_value, ended, gamma, 1.0)
        # Worker 0 dies at its 4th step: 1 + 1/2 + 1/4 + 1/8 - 10 at its first one.
        assert advantage[:4, 0].tolist() == [1.875 - 10, 1.75 - 10, 1.5 - 10, 1.0 - 10]
        # Worker 1 goes on to the 8th: what became of the others does not matter to it.
        assert advantage[4:, 1].tolist() == [1.875 - 10, 1.75 - 10, 1.5 - 10, 1.0 - 10]
        assert advantage[0, 1] == 2 - 2.0**-7 - 10
        # The guest comes at the 3rd and is truncated at the 6th: its last step bootstraps, 1 + 10 / 2 - 10.
        assert advantage[2:6, 2].tolist() == [
            1.875 + 10 / 16 - 10, 1.75 + 10 / 8 - 10, 1.5 + 10 / 4 - 10, 1.0 + 10 / 2 - 10,
        ]  # fmt: skip


@pytest.mark.parametrize("group", [1, 2])
def test_first_ready_blocks_take_columns_of_agents(group: int) -> None:
    with agents("first_ready", 4, group) as (collector, block):
        assert collector.fill(block, 0, never)
        assert block.num_columns == 12
        np.testing.assert_array_equal(block.valid, block.obs[0][:-1, :, 1] == 1.0)
