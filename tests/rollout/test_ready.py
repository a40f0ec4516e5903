"""Acting here for workers as they get ready: the same blocks as with one vector in one process."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from collector_toys import Counter, Gate
from collectors import SEED, assert_equal_blocks, make_weights, policy_spec
from hazards import Hazard
from mission_gym.data import Block, EnvSpec, Weights
from mission_gym.env.probe import probe
from mission_gym.policy import NumpyPolicy
from mission_gym.rollout import collector as collector_module
from mission_gym.rollout.blocks import clear_block, make_block
from mission_gym.rollout.collector import Collector, ReadyCollector
from mission_gym.vector.record import Limits, VectorOptions
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.workers import WorkersVec
from timeouts import LONG_S, scale_timeout
from toys import seed_of

NUM_ENVS, NUM_STEPS, ROWS = 6, 40, 2


class Uneven(gym.Wrapper):
    """Steps take a random time, so that any worker may be ready first."""

    def step(self, action: Any) -> Any:
        time.sleep(float(np.random.default_rng().uniform(0, 2e-3)))
        return self.env.step(action)


def make_uneven() -> gym.Env:
    return Uneven(gym.make("CartPole-v1", max_episode_steps=15))


def make_policy(spec: EnvSpec, weights: Weights) -> NumpyPolicy:
    policy = NumpyPolicy(policy_spec(spec))
    policy.load(weights)
    return policy


def ready(factory: Any, spec: EnvSpec, num_workers: int) -> WorkersVec:
    options = VectorOptions(
        num_workers=num_workers, group_size=ROWS, first_ready=True, limits=Limits(timeout_s=LONG_S)
    )
    return WorkersVec(factory, spec, NUM_ENVS, seed_of, options)


def collect_straight(spec: EnvSpec, weights: Weights, num_blocks: int) -> list[Block]:
    """What one vector in this process gives."""
    blocks = [make_block(spec, NUM_STEPS, NUM_ENVS) for _ in range(num_blocks)]
    with SerialVec(make_uneven, spec, NUM_ENVS, seed_of) as vec:
        collector = Collector(vec, make_policy(spec, weights), spec, SEED, ROWS)
        collector.start()
        for number, block in enumerate(blocks):
            assert collector.fill(block, number, lambda: False)
    return blocks


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_blocks_equal_those_of_one_process(num_workers: int) -> None:
    spec = probe(make_uneven, "uneven")
    weights = make_weights(spec)
    expected = collect_straight(spec, weights, 2)
    with ready(make_uneven, spec, num_workers) as vec:
        collector = ReadyCollector(vec, make_policy(spec, weights), spec, SEED, ROWS)
        collector.start()
        for number, wanted in enumerate(expected):
            block = make_block(spec, NUM_STEPS, NUM_ENVS)
            assert collector.fill(block, number, lambda: False)
            assert_equal_blocks(block, wanted)


@pytest.mark.parametrize("polls", [0, 1, 7, 30])
def test_a_stop_ends_each_segment_after_its_running_step(polls: int) -> None:
    spec = probe(make_uneven, "uneven")
    weights = make_weights(spec)
    (expected,) = collect_straight(spec, weights, 1)
    with ready(make_uneven, spec, 3) as vec:
        collector = ReadyCollector(vec, make_policy(spec, weights), spec, SEED, ROWS)
        collector.start()
        block, asked = make_block(spec, NUM_STEPS, NUM_ENVS), iter(range(10**6))
        assert not collector.fill(block, 0, lambda: next(asked) >= polls)
        assert not block.is_full
        for first in range(0, NUM_ENVS, ROWS):  # the rows of a worker are a segment
            (filled,) = set(block.filled[first : first + ROWS].tolist())
            cut = slice(0, filled + 1), slice(first, first + ROWS)
            for leaf, wanted in zip(block.obs, expected.obs, strict=True):
                np.testing.assert_array_equal(leaf[cut], wanted[cut])
        vec.state()  # it would raise if a worker were under way
        assert collector.fill(block, 0, lambda: False)
        assert_equal_blocks(block, expected)
        clear_block(block)


def test_a_step_that_hangs_at_a_stop_costs_its_segment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "STOP_S", scale_timeout(0.3))
    gate = Gate(str(tmp_path / "gate"))
    factories = [partial(Counter, gate.path), *[Counter] * (NUM_ENVS - 1)]
    spec = probe(Counter, "counter")
    with ready(factories, spec, 3) as vec:
        collector = ReadyCollector(vec, make_policy(spec, make_weights(spec)), spec, SEED, ROWS)
        collector.start()
        block = make_block(spec, NUM_STEPS, NUM_ENVS)
        try:  # the third step of environment 0 waits
            assert not collector.fill(block, 0, lambda: (block.filled[ROWS:] > 20).all())
            assert block.filled[:ROWS].tolist() == [0] * ROWS
            assert (block.filled[ROWS:] > 20).all()
            assert [state.how for state in vec.state()] == ["boundary"] * ROWS + ["replay"] * (
                NUM_ENVS - ROWS
            )
        finally:
            gate.close()
        # Here it goes on, without what was given up.
        assert collector.fill(block, 0, lambda: False)
        assert (block.reward[0] == [4, 4, 1, 1, 1, 1]).all()
        assert not collector.interrupted_mid_step
        assert {state.how for state in vec.state()} == {"replay"}


def test_a_worker_that_dies_costs_its_episodes_alone(tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    factories = [partial(Hazard, "exit", at=5, once=once), *[Hazard] * (NUM_ENVS - 1)]
    spec = probe(factories[-1], "hazard")
    weights = make_weights(spec)
    with ready(factories, spec, 3) as vec:
        collector = ReadyCollector(vec, make_policy(spec, weights), spec, SEED, ROWS)
        collector.start()
        block = make_block(spec, 12, NUM_ENVS)
        assert collector.fill(block, 0, lambda: False)
        assert (~block.valid).any(axis=0).tolist() == [True, True, False, False, False, False]
        assert vec.num_restarts == 1
