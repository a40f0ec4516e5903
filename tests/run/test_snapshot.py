"""The block in progress of a checkpoint: it continues, or its losses are noted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectors import collecting, never
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.env.resume import pack_states, unpack_states
from mission_gym.rollout.blocks import make_block, pack_block
from mission_gym.run.snapshot import restore_snapshot, take_snapshot
from mission_gym.store.checkpoints import Checkpoint

T, S = 12, 3
LEARNER: Any = SimpleNamespace(
    step=64, arrays=dict, load_arrays=lambda arrays: None, behind=lambda: None, extras=dict,
    has_extras=False,
)  # fmt: skip


FACTORY = make_factory(EnvRequest("CartPole-v1"))
SPEC = probe(FACTORY, "CartPole-v1")


def cartpole() -> Any:
    return collecting("serial", FACTORY, SPEC, S, T, group=S)


@pytest.fixture(scope="module")
def straight() -> dict[str, Any]:
    with cartpole() as (collector, block):
        collector.start()
        collector.fill(block, 0, never)
        return {name: array.copy() for name, array in pack_block(block).items()}


def take(num_steps: int) -> Checkpoint:
    """The checkpoint of a block that was stopped after so many rows."""
    with cartpole() as (collector, block):
        collector.start()
        collector.fill(block, 0, lambda: block.filled[0] == num_steps)
        made = take_snapshot(LEARNER, collector, [block], {})
    assert made.step == 64 + S * num_steps
    return Checkpoint(made.step, Path(), made.policy, made.state, made.state_json, {})


def test_a_block_in_progress_continues(straight: dict[str, Any]) -> None:
    checkpoint = take(5)
    assert checkpoint.state["block/filled"].tolist() == [5] * S
    with cartpole() as (collector, block):
        restored = restore_snapshot(checkpoint, LEARNER, collector, [block])
        assert restored.notes == ["3 of 3 environments restored by replay"]
        assert restored.exact
        assert block.filled.tolist() == [5] * S
        assert collector.fill(block, 0, never)
        for name, array in pack_block(block).items():
            np.testing.assert_array_equal(array, straight[name], err_msg=name)


def test_lost_steps_are_noted_and_the_resume_is_not_exact() -> None:
    checkpoint = take(0)
    with cartpole() as (collector, block):
        damaged = replace(checkpoint, state_json=checkpoint.state_json | {"steps_lost": 36})
        restored = restore_snapshot(damaged, LEARNER, collector, [block])
        assert restored.notes[-1] == "36 steps were not saved and are lost"
        assert not restored.exact


def test_an_environment_that_starts_again_truncates_its_newest_segment() -> None:
    """Of two blocks in hand the newer one may have nothing of it."""
    checkpoint = take(5)
    states = unpack_states(checkpoint.state, checkpoint.state_json["environments"])
    states[1] = replace(states[1], how="boundary", reason="for a test")
    document = checkpoint.state_json | {"environments": pack_states(states)[1]}
    with cartpole() as (collector, block):
        spare = make_block(SPEC, T, S)
        restored = restore_snapshot(
            replace(checkpoint, state_json=document), LEARNER, collector, [block, spare]
        )
        assert not restored.exact
        assert block.truncated[4].tolist() == [False, True, False]
        assert block.finals[-1][:2] == (4, 1)
