"""A run in the middle: what a checkpoint holds, and how everything comes back from it.

A checkpoint is the state before an update: learner, statistics, counters, environments, and the blocks
in hand where some were begun. Random streams are functions of the counters, so they need no room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mission_gym.data import Array, Block, Episode
from mission_gym.env.resume import SlotState, pack_states, unpack_states
from mission_gym.learner.blocks import strip
from mission_gym.learner.contract import Learner
from mission_gym.pipeline.loop import newest
from mission_gym.rollout.collector import BlockCollector, clear_block, cut_row, pack_block, unpack_block
from mission_gym.store.checkpoints import Checkpoint, load_replay
from mission_gym.vector.base import Vector

_MAX_BLOCK_BYTES = 512 << 20  # larger blocks in hand are collected again rather than saved in haste
_PREFIXES = ("block", "next")  # of the blocks in hand, in their order


@dataclass(slots=True)
class Snapshot:
    """The parts of a checkpoint, ready to be written."""

    step: int  # see count_steps
    policy: dict[str, Array]
    state: dict[str, Array]
    state_json: dict[str, Any]
    extras: dict[str, Array]  # of the last checkpoint alone; views, to be written at once


def count_steps(learner: Learner, blocks: Sequence[Block]) -> int:
    """Transitions learned from, and those of the block that is being filled. A full one that waits for its
    update beside it does not count yet, so that a step names one policy, with overlap or without."""
    block = newest(blocks)
    return learner.step + block.filled * block.num_rows


def take_snapshot(
    learner: Learner,
    vec: Vector,
    blocks: Sequence[Block],
    counters: dict[str, Any],
    *,
    torn: bool = False,
    extras_limit: int = 0,
) -> Snapshot:
    """Gather the state. `torn`: a vector step was broken off, so that the environments stand at
    different steps; they start their next episodes, and the block that was being filled is dropped. A
    learner's extras of more than `extras_limit` bytes are left out."""
    states = _boundaries(vec) if torn else vec.state()
    lost = 0
    if torn:
        lost = newest(blocks).filled
        clear_block(newest(blocks))
    arrays = learner.arrays()
    env_arrays, env_json = pack_states(states)
    state = {name: array for name, array in arrays.items() if not name.startswith("policy/")} | env_arrays
    held = {prefix: block for prefix, block in zip(_PREFIXES, blocks, strict=False) if block.filled}
    packed = {
        name: array for prefix, block in held.items() for name, array in pack_block(block, prefix).items()
    }
    step = count_steps(learner, blocks)
    if sum(array.nbytes for array in packed.values()) > _MAX_BLOCK_BYTES:
        step, lost = learner.step, lost + sum(block.filled for block in held.values())
        held = {}
    else:
        state |= packed
    if (
        len(blocks) > 1
        and blocks[0].filled < blocks[0].num_steps
        and (behind := learner.behind()) is not None
    ):
        # The next block is collected with the weights that a run without this break has there.
        state |= {f"behind/{name}": array for name, array in behind.arrays.items()}
    in_hand: dict[str, Any] = {}
    for prefix, block in held.items():
        in_hand[f"{prefix}_filled"] = block.filled
        in_hand[f"{prefix}_episodes"] = [list(episode) for episode in block.episodes]
    extras = learner.extras()
    if sum(array.nbytes for array in extras.values()) > extras_limit:
        extras = {}
    return Snapshot(
        step=step,
        extras=extras,
        policy=strip(arrays, "policy/"),
        state=state,
        state_json={"environments": env_json, "block_lost": lost, "counters": counters} | in_hand,
    )


def _boundaries(vec: Vector) -> list[SlotState]:
    reason = "the run broke off inside a step"
    return [
        SlotState("boundary", number, None, 0, 0.0, (), reason=reason) for number in vec.episode_numbers()
    ]


def restore_snapshot(
    checkpoint: Checkpoint,
    learner: Learner,
    vec: Vector,
    blocks: Sequence[Block],
    collector: BlockCollector,
) -> list[str]:
    """Bring everything back; returns how the environments came back, to be said aloud."""
    learner.load_arrays(learner_arrays(checkpoint))
    lost = learner.load_extras(load_replay(checkpoint))
    document = checkpoint.state_json
    held = []
    for prefix, block in zip(_PREFIXES, blocks, strict=False):
        if document.get(f"{prefix}_filled"):
            unpack_block(block, checkpoint.state, prefix)
            block.episodes = [Episode(*fields) for fields in document[f"{prefix}_episodes"]]
            held.append(block)
    behind = strip(checkpoint.state, "behind/")
    if behind:
        learner.load_behind(behind)
    states: list[SlotState] = unpack_states(checkpoint.state, document["environments"])
    batch, ways = vec.restore(states)
    collector.go_on(batch)
    for env_id, way in enumerate(ways):
        if way.startswith("boundary"):
            rows = np.flatnonzero(held[-1].env_ids == env_id).tolist() if held else []
            if rows:
                cut_row(held[-1], held[-1].filled, rows[-1])
            else:
                learner.lose_episode(env_id)
    told = [f"{count} of {len(ways)} environments came back by {way}" for way, count in Counter(ways).items()]
    told += [lost] if lost else []
    if document["block_lost"]:
        told.append(f"{document['block_lost'] * blocks[0].num_rows} steps were not saved and are lost")
    return told


def learned_steps(checkpoint: Checkpoint) -> int:
    """Transitions that the checkpoint's policy was learned from."""
    return int(checkpoint.state["counters"][1])


def learner_arrays(checkpoint: Checkpoint) -> dict[str, Array]:
    """Parameters, optimizer, statistics and counters of the learner alone."""
    policy = {f"policy/{name}": array for name, array in checkpoint.policy.items()}
    return policy | checkpoint.state
