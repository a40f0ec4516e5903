"""Blocks hold each frame of a stack once, and show the stacks that environments gave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

from collectors import collecting
from mission_gym.data import ActOut, Array, Block, EnvSpec, Leaves, Weights
from mission_gym.env.probe import probe
from mission_gym.env.wrappers import FrameStack
from mission_gym.errors import EnvContractError
from mission_gym.learner.blocks import flatten_obs
from mission_gym.rollout.blocks import (
    block_bytes,
    clear_block,
    invalidate_transition,
    make_block,
    pack_block,
    read_obs,
    slice_block,
    truncate_column,
    unpack_block,
)

T, S, K = 40, 4, 3


class Film(gym.Env[Any, Any]):
    """A frame tells its episode and its step. Episodes end either way, and steps raise, at random; step `at`
    ends the process, once, which a file remembers."""

    def __init__(self, at: int = -1, once: str = "") -> None:
        self.observation_space = gym.spaces.Box(0, 255, (9, 9), np.uint8)
        self.action_space = gym.spaces.Discrete(3)
        self.at, self.once = at, once

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tag, self.age = int(self.np_random.integers(256)), 0
        return self.show(), {}

    def step(self, action: Any) -> Any:
        self.age += 1
        chance = self.np_random.random()
        if chance < 0.02:
            raise RuntimeError("out of film")
        if self.age == self.at and not Path(self.once).exists():
            Path(self.once).touch()
            os._exit(3)
        return self.show(), float(action), chance < 0.08, chance > 0.9, {}

    def show(self) -> Array:
        frame = np.full((9, 9), self.tag, np.uint8)
        frame[0, 0] = self.age
        return frame


def make_film(**hazard: Any) -> gym.Env[Any, Any]:
    return FrameStack(Film(**hazard), K)


class Adder:
    """Acts by every pixel that it sees."""

    version = 0

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        action = obs[0].reshape(len(obs[0]), -1).astype(np.int64).sum(1, keepdims=True) % 3
        return ActOut(action, np.zeros(len(action), np.float32))

    def initial_state(self, num_rows: int) -> Leaves:
        return ()

    def load(self, weights: Weights) -> None:
        pass

    def shapes(self) -> dict[str, Any]:
        return {}


@contextmanager
def collect(kind: str, spec: EnvSpec, makers: Any = make_film) -> Iterator[Any]:
    with collecting(kind, makers, spec, S, T, make_policy=Adder, max_restarts=9) as (collector, _):
        yield collector


def whole_of(spec: EnvSpec) -> EnvSpec:
    """As if nobody had said that they are stacks."""
    return replace(spec, leaves=tuple(replace(leaf, frames=1) for leaf in spec.leaves))


def fill(collector: Any, spec: EnvSpec, num_blocks: int) -> Iterator[Block]:
    """Blocks, each valid until the next; each is stopped once on its way."""
    collector.start()
    block = collector.blocks[0] if hasattr(collector, "blocks") else make_block(spec, T, S)
    for number in range(num_blocks):
        clear_block(block)
        polls = iter([False] * 9 + [True])
        while not collector.fill(block, number, lambda polls=polls: next(polls, False)):
            pass
        yield block


def shown(block: Block) -> Array:
    """[T + 1, S, k, 9, 9]"""
    return np.stack([read_obs(block, t, slice(None))[0] for t in range(T + 1)])


def assert_stacks(stacks: Array) -> None:
    """Of one episode each, the first frame repeated."""
    for stack in stacks.reshape(-1, K, 9, 9):
        tags, ages = stack[:, 1, 1].tolist(), stack[:, 0, 0].tolist()
        assert len(set(tags)) == 1
        assert ages == [max(0, ages[-1] - back) for back in range(K - 1, -1, -1)]


def assert_shows(block: Block, wanted: Array) -> None:
    """What the block shows, alone and all at once, but where a transition was lost."""
    kept = np.concatenate([block.valid, np.ones((1, S), bool)])
    np.testing.assert_array_equal(shown(block)[kept], wanted[kept])
    (frames,), (places,) = flatten_obs(block)
    assert places is not None
    flat = frames[places]
    np.testing.assert_array_equal(flat[: (T + 1) * S].reshape(T + 1, S, K, 9, 9)[kept], wanted[kept])
    for stack, final in zip(flat[(T + 1) * S :], block.finals, strict=True):
        np.testing.assert_array_equal(stack, final.obs[0])


@pytest.mark.parametrize("kind", ["serial", "ready", "workers", "threads"])
def test_what_is_shown_is_what_the_environments_gave(kind: str) -> None:
    spec = probe(make_film, "film")
    assert spec.leaves[0].frames == K
    plain = whole_of(spec)
    with collect(kind, spec) as mine, collect("serial", plain) as theirs:
        num_lost = 0
        for block, whole in zip(fill(mine, spec, 4), fill(theirs, plain, 4), strict=True):
            assert block.obs[0].shape == (T + K, S, 9, 9)
            np.testing.assert_array_equal(block.action, whole.action)
            np.testing.assert_array_equal(block.valid, whole.valid)
            assert_shows(block, whole.obs[0])
            assert_stacks(shown(block)[-1])
            assert [final[:2] for final in block.finals] == [final[:2] for final in whole.finals]
            for one, two in zip(block.finals, whole.finals, strict=True):
                np.testing.assert_array_equal(one.obs[0], two.obs[0])
            num_lost += int((~block.valid).sum())
        assert num_lost > 3


@pytest.mark.parametrize("kind", ["workers", "first_ready"])
def test_the_death_of_a_worker_mixes_no_frames(kind: str, tmp_path: Path) -> None:
    spec = probe(make_film, "film")
    mortal = partial(make_film, at=5, once=str(tmp_path / "gone"))
    with collect(kind, spec, [make_film, mortal, make_film, make_film]) as collector:
        failed = 0
        for block in fill(collector, spec, 4):
            kept = np.concatenate([block.valid, np.ones((1, S), bool)])
            assert_stacks(shown(block)[kept])
            assert_stacks(np.stack([final.obs[0] for final in block.finals if block.valid[final[:2]]]))
            failed += sum(episode.failed for episode in block.episodes)
        assert (tmp_path / "gone").exists()
        assert failed


class Smear(Film):
    """Draws into the one array that it gives."""

    def step(self, action: Any) -> Any:
        self.age += 1
        self.canvas[0, 0] = self.age
        return self.canvas, 0.0, False, False, {}

    def show(self) -> Array:
        self.canvas = super().show()
        return self.canvas


def make_smear() -> gym.Env[Any, Any]:
    return FrameStackObservation(Smear(), K)


@pytest.mark.parametrize("kind", ["serial", "ready", "workers", "threads"])
def test_what_is_no_stack_is_refused(kind: str) -> None:
    """Gymnasium's wrapper keeps the array that it is given."""
    spec = probe(make_smear, "smear")
    with (
        collect(kind, spec, make_smear) as collector,
        pytest.raises(EnvContractError, match=r"is not the stack of the last frames.* must return a copy"),
    ):
        list(fill(collector, spec, 1))


def make_copied() -> gym.Env[Any, Any]:
    return FrameStack(Smear(), K)


def test_our_wrapper_copies_what_it_is_given() -> None:
    spec = probe(make_copied, "smear")
    with collect("serial", spec, make_copied) as collector:
        for block in fill(collector, spec, 2):
            assert_stacks(shown(block))


def test_blocks_go_through_a_checkpoint() -> None:
    spec = probe(make_film, "film")
    with collect("serial", spec) as collector:
        block, again = make_block(spec, T, S), make_block(spec, T, S)
        collector.start()
        assert not collector.fill(block, 0, lambda: block.filled[0] >= 17)
        unpack_block(again, pack_block(block))
        np.testing.assert_array_equal(again.obs[0][: 17 + K], block.obs[0][: 17 + K])
        assert [final[:2] for final in again.finals] == [final[:2] for final in block.finals]


def test_cut_and_lost_rows_bootstrap_from_the_stack_that_was_shown() -> None:
    spec = probe(make_film, "film")
    with collect("serial", spec) as collector:
        (block,) = fill(collector, spec, 1)
    t, column = next(  # in the middle of an episode
        (t, s)
        for s in range(S)
        for t in range(5, T)
        if not (block.terminated | block.truncated | ~block.valid)[t - 4 : t, s].any()
    )
    before = read_obs(block, t, slice(column, column + 1))[0][0]
    assert before[0, 0, 0] != before[-1, 0, 0]
    block.finals = []
    invalidate_transition(block, t, column)
    assert [final[:2] for final in block.finals] == [(t - 1, column), (t, column)]
    for final in block.finals:
        np.testing.assert_array_equal(final.obs[0], before)
    clear_block(block)
    earlier = read_obs(block, t - 1, slice(column, column + 1))[0][0]
    block.truncated[t - 2, column] = False
    truncate_column(block, t - 1, column)
    (final,) = block.finals
    np.testing.assert_array_equal(final.obs[0], earlier)
    assert block.truncated[t - 2, column]


def test_a_part_shows_its_own_columns_and_memory_is_predicted() -> None:
    spec = probe(make_film, "film")
    with collect("serial", spec) as collector:
        (block,) = fill(collector, spec, 1)
    part = slice_block(block, 11, slice(1, 3))
    assert part.obs[0].shape == (11 + K, 2, 9, 9)
    for t in range(12):
        np.testing.assert_array_equal(read_obs(part, t, slice(1, 2))[0], read_obs(block, t, slice(2, 3))[0])
    arrays = [*block.obs, block.action, block.log_prob, block.reward]
    arrays += [block.terminated, block.truncated, block.valid]
    assert sum(array.nbytes for array in arrays) == block_bytes(spec, T, S)
    assert block_bytes(spec, T, S) < block_bytes(whole_of(spec), T, S) / 2
