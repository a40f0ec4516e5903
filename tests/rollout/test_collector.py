"""Filling blocks: what is stored, what is kept for bootstrapping, and stopping half-way."""

from __future__ import annotations

import numpy as np
import pytest

from collectors import assert_equal_blocks, never
from mission_gym.data import EnvSpec, Weights
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.plan.costs import measure_collect
from mission_gym.policy import NumpyPolicy, PolicySpec
from mission_gym.policy.torch_forms import ActorCritic, TorchPolicy, model_arrays
from mission_gym.rollout.blocks import (
    block_bytes,
    clear_block,
    make_block,
    pack_block,
    truncate_column,
    unpack_block,
)
from mission_gym.rollout.collector import Collector
from mission_gym.rollout.play import play, seed_of_suite
from mission_gym.run.evaluation import policy_actor
from mission_gym.streams import episode_seed, suite_seeds
from mission_gym.vector.serial import SerialVec

T, S = 30, 3


def make_collector(env_id: str) -> tuple[Collector, EnvSpec]:
    factory = make_factory(EnvRequest(env_id))
    spec = probe(factory, env_id)
    layout = PolicySpec(spec.leaves, spec.action, (8,), normalize_obs=False)
    policy = NumpyPolicy(layout) if layout.has_numpy_form else TorchPolicy(layout)
    policy.load(Weights(5, model_arrays(ActorCritic(layout, seed=1))))
    vec = SerialVec(factory, spec, S, lambda env, number: episode_seed(7, "train", env, number))
    return Collector(vec, policy, spec, seed=7), spec


def test_a_truncated_episode_keeps_its_last_observation() -> None:
    collector, spec = make_collector("toys:Identity")  # truncates every 20 steps
    block = make_block(spec, T, S)
    collector.start()
    assert collector.fill(block, 0, never)
    assert block.filled.tolist() == [T] * S
    assert (block.version == 5).all()
    assert block.valid.all()
    assert [final[:2] for final in block.finals] == [(19, row) for row in range(S)]
    assert [episode.length for episode in block.episodes] == [20] * S
    assert not block.terminated.any()
    assert block.truncated.sum() == S


def test_a_terminated_episode_needs_no_last_observation() -> None:
    collector, spec = make_collector("CartPole-v1")
    block = make_block(spec, 60, S)
    collector.start()
    collector.fill(block, 0, never)
    assert block.terminated.any()
    assert block.finals == []


@pytest.mark.parametrize("env_id", ["CartPole-v1", "toys:DictMask"])
@pytest.mark.parametrize("stop_at", [0, 1, 13, 29])
def test_a_stopped_block_goes_on_with_the_same_numbers(env_id: str, stop_at: int) -> None:
    straight, spec = make_collector(env_id)
    whole = make_block(spec, T, S)
    straight.start()
    straight.fill(whole, 4, never)

    collector, _ = make_collector(env_id)
    block = make_block(spec, T, S)
    collector.start()
    assert not collector.fill(block, 4, lambda: block.filled[0] >= stop_at)
    assert block.filled.tolist() == [stop_at] * S
    again = make_block(spec, T, S)
    unpack_block(again, pack_block(block))
    again.episodes = block.episodes
    assert collector.fill(again, 4, never)
    assert_equal_blocks(whole, again)


def test_a_cut_row_bootstraps_from_the_last_observation_seen() -> None:
    collector, spec = make_collector("CartPole-v1")
    block = make_block(spec, T, S)
    collector.start()
    collector.fill(block, 0, lambda: block.filled[0] >= 5)
    truncate_column(block, 5, 1)
    assert block.truncated[4].tolist() == [False, True, False]
    assert [final[:2] for final in block.finals] == [(4, 1)]
    np.testing.assert_array_equal(block.finals[0].obs[0], block.obs[0][5, 1])
    clear_block(block)
    assert (block.num_filled, block.finals, block.episodes) == (0, [], [])


def test_priming_leaves_no_trace() -> None:
    primed, spec = make_collector("CartPole-v1")
    layout = PolicySpec(spec.leaves, spec.action, (8,), normalize_obs=False)
    weights = Weights(5, model_arrays(ActorCritic(layout, seed=1)))
    _, (obs,), num_failed, episode_steps = measure_collect(primed, weights, 8, num_blocks=2)
    assert (obs.shape, num_failed) == ((9 * S, 4), 0)
    assert episode_steps == 2 * 8  # no episode has ended: twice the steps of an environment
    (once,) = measure_collect(primed, weights, 8).obs
    np.testing.assert_array_equal(obs, once)  # however often it is played
    plain, _ = make_collector("CartPole-v1")
    plain.start()
    blocks = [make_block(spec, T, S) for _ in range(2)]
    for collector, block in zip((primed, plain), blocks, strict=True):
        collector.fill(block, 0, never)
    assert_equal_blocks(*blocks)


@pytest.mark.parametrize("env", ["toys:DictMask", "Pendulum-v1"])
def test_block_memory_is_predicted(env: str) -> None:
    _, spec = make_collector(env)
    block = make_block(spec, T, S)
    arrays = [*block.obs, block.mask, block.action, block.log_prob, block.reward]
    arrays += [block.terminated, block.truncated, block.valid]
    assert block_bytes(spec, T, S) == sum(array.nbytes for array in arrays if array is not None)


def test_playing_counts_episodes_by_seed() -> None:
    """Five seeds on two environments: 0, 2, 4 and 1, 3; long and short episodes all count once."""
    collector, spec = make_collector("CartPole-v1")
    seeds = suite_seeds("report", 5)
    factory = make_factory(EnvRequest("CartPole-v1"))
    with SerialVec(factory, spec, 2, seed_of_suite(seeds, 2)) as vec:
        episodes = play(vec, policy_actor(collector.policy, spec), spec, 5, explore=False)
    assert episodes is not None
    assert [episode.seed for episode in episodes] == seeds
    with SerialVec(factory, spec, 1, seed_of_suite(seeds, 1)) as vec:
        alone = play(vec, policy_actor(collector.policy, spec), spec, 5, explore=False)
    assert alone is not None
    assert [episode.ret for episode in alone] == [episode.ret for episode in episodes]


def test_playing_stops_when_asked() -> None:
    collector, spec = make_collector("CartPole-v1")
    with SerialVec(make_factory(EnvRequest("CartPole-v1")), spec, 1, lambda env, number: 1) as vec:
        assert (
            play(vec, policy_actor(collector.policy, spec), spec, 5, explore=True, stop=lambda: True) is None
        )
