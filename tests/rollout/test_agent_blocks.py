"""Agents as rows of a block: every backend the same, advantages by hand, and what deaths of workers cost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from collectors import never
from mission_gym.data import Array, Block, EnvSpec, Weights
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.learner.advantages import compute_gae
from mission_gym.policy import NumpyPolicy, PolicySpec
from mission_gym.policy.torch_forms import ActorCritic, TorchPolicy, model_arrays
from mission_gym.rollout.blocks import clear_block, pack_block
from mission_gym.rollout.make import CollectRequest, make_collector
from mission_gym.vector.backends import load_backend
from mission_gym.vector.record import Limits, Source, VectorOptions
from timeouts import LONG_S
from toys import seed_of

NUM_ENVS, T = 5, 30


@contextmanager
def collecting(
    backend: str, name: str = "Lives", *, torch: bool = False, max_restarts: int = 5, **kwargs: Any
) -> Iterator[tuple[Any, Block]]:
    """A collector on a backend, with the same policy everywhere; groups of two environments."""
    request = EnvRequest(f"agent_toys:{name}", kwargs)
    spec = probe(make_factory(request), request.env_id)
    layout = PolicySpec(spec.leaves, spec.action, (8,), normalize_obs=False)
    limits = Limits(timeout_s=LONG_S, max_restarts=max_restarts)
    options = VectorOptions(num_workers=2, limits=limits)
    source = Source(request.env_id, make_factory(request), request, options)
    asked = CollectRequest(
        num_envs=NUM_ENVS, num_steps=T, num_blocks=1, acting_rows=2 * spec.num_agents, seed=7,
        first_ready=False, make_policy=partial(TorchPolicy if torch else NumpyPolicy, layout),
        is_portable=not torch,
    )  # fmt: skip
    record = load_backend(backend)
    vec, collector, (block,) = make_collector(record, source, spec, seed_of, asked)
    with vec:
        collector.load(Weights(0, model_arrays(ActorCritic(layout, seed=1))))
        collector.start()
        yield collector, block


def fill(backend: str, *args: Any, **kwargs: Any) -> list[tuple[dict[str, Array], list[Any]]]:
    """Two blocks, the second begun in the middle of episodes."""
    filled = []
    with collecting(backend, *args, **kwargs) as (collector, block):
        for number in range(2):
            assert collector.fill(block, number, never)
            packed = {name: array.copy() for name, array in pack_block(block).items()}
            filled.append((packed, list(block.episodes)))
            clear_block(block)
    return filled


def assert_equal(one: Any, other: Any) -> None:
    for (mine, episodes), (theirs, others) in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        for name, array in mine.items():
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)
        assert episodes == others


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("backend", ["workers", "threads"])
def test_every_backend_fills_the_same_blocks(backend: str, masked: bool) -> None:
    assert_equal(fill(backend, masked=masked), fill("serial", masked=masked))


def test_acting_here_for_agents_in_workers_fills_the_same_blocks() -> None:
    assert_equal(fill("workers", torch=True), fill("serial", torch=True))


@pytest.mark.parametrize("backend", ["serial", "workers"])
def test_an_environment_that_raises_costs_the_step_of_all_its_agents(backend: str) -> None:
    with collecting(backend, "Breaking", max_restarts=50) as (collector, block):
        assert collector.fill(block, 0, never)
        failed = [episode for episode in block.episodes if episode.failed]
        assert failed
        for episode in failed:
            assert (seed_of(episode.env_id, episode.number) % 3, episode.length) == (0, 3)
        lost = block.truncated & ~block.valid
        # At its step 3 everybody is there: the workers and the guest, who came before.
        assert lost.sum() == 3 * len(failed)
        for t, column in np.argwhere(lost).tolist():
            assert block.truncated[t - 1, column] == (t > 0)
            assert {(t, column), (t - 1, column)} <= {final[:2] for final in block.finals}


def test_what_is_not_there_is_never_valid_and_ends_nothing() -> None:
    with collecting("serial") as (collector, block):
        collector.fill(block, 0, never)
        there = block.obs[0][:-1, :, 1] == 1.0
        np.testing.assert_array_equal(block.valid, there)
        assert not (block.terminated | block.truncated)[~there].any()
        assert (block.reward[~there] == 0).all()
        assert block.env_ids.tolist() == np.repeat(np.arange(NUM_ENVS), 3).tolist()
        # The guest alone is truncated, after four steps; V of its last observation is asked for.
        assert {final.column % 3 for final in block.finals} == {2}
        assert all(final.obs[0][1] == 1.0 for final in block.finals)


def test_advantages_where_one_agent_dies_and_another_goes_on() -> None:
    """One environment of 8 steps; gamma 0.5, lambda 1, V = 10 everywhere, reward 1 for each who is there."""
    gamma = 0.5
    with collecting("serial") as (collector, block):
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


def test_the_death_of_a_worker_costs_one_step_of_all_its_agents() -> None:
    with collecting("workers") as (collector, block):
        os.kill(collector.vec.pids()[0], signal.SIGKILL)
        assert collector.fill(block, 0, never)
        hurt = collector.vec.env_ids[0]
        columns = np.isin(block.env_ids, list(hurt))
        lost = block.truncated & ~block.valid
        assert lost[0, columns].all()
        assert not lost[:, ~columns].any()
        failed = [episode.env_id for episode in block.episodes if episode.failed]
        assert sorted(failed) == list(hurt)


def test_a_stopped_block_goes_on_as_if_it_had_not_been_stopped() -> None:
    (straight, episodes), _ = fill("serial")
    with collecting("workers") as (collector, block):
        polls = iter(range(10**6))
        collector.fill(block, 0, lambda: next(polls) >= 1)
        states = collector.vec.state()
        assert len(states) == NUM_ENVS
        _, ways = collector.vec.restore(states)
        assert set(ways) <= {"replay", "boundary: its episode was over"}
        assert collector.fill(block, 0, never)
        for name, array in pack_block(block).items():
            np.testing.assert_array_equal(array, straight[name], err_msg=name)
        assert block.episodes == episodes


def spec_of(name: str) -> EnvSpec:
    return probe(make_factory(EnvRequest(f"agent_toys:{name}")), name)


@pytest.mark.parametrize("rows", [3, 6])
def test_first_ready_blocks_take_columns_of_agents(rows: int) -> None:
    request, spec = EnvRequest("agent_toys:Lives"), spec_of("Lives")
    layout = PolicySpec(spec.leaves, spec.action, (8,), normalize_obs=False)
    options = VectorOptions(num_workers=2, limits=Limits(timeout_s=LONG_S))
    source = Source(request.env_id, make_factory(request), request, options)
    asked = CollectRequest(4, T, 1, rows, 7, True, partial(NumpyPolicy, layout), True)
    record = load_backend("workers")
    vec, collector, (block,) = make_collector(record, source, spec, seed_of, asked)
    with vec:
        collector.load(Weights(0, model_arrays(ActorCritic(layout, seed=1))))
        collector.start()
        assert collector.fill(block, 0, never)
        assert block.num_columns == 12
        np.testing.assert_array_equal(block.valid, block.obs[0][:-1, :, 1] == 1.0)
