"""A run in the middle: what a checkpoint holds, and how everything comes back from it.

A checkpoint is the state before an update: learner, statistics, counters, environments, and the blocks
in hand where some were begun. Random streams are functions of the counters, so they need no room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mission_gym.data import Array, Block, Episode, Weights
from mission_gym.env.resume import SlotState, pack_states, unpack_states
from mission_gym.errors import RunStateError, describe
from mission_gym.learner.blocks import with_prefix
from mission_gym.learner.contract import Learner
from mission_gym.learner.loop import newest
from mission_gym.rollout.blocks import clear_block, pack_block, truncate_column, unpack_block
from mission_gym.rollout.collector import BlockCollector
from mission_gym.store.checkpoints import Checkpoint, load_replay
from mission_gym.vector.arrays import rows_of
from mission_gym.vector.base import Vector

_MAX_BLOCK_BYTES = 512 << 20  # larger blocks in hand are collected again rather than saved in haste
_PREFIXES = ("block", "next")  # of the blocks in hand, in their order


@dataclass(frozen=True, slots=True)
class Restored:
    """How a run came back: in words, and whether it goes on as if it had not been stopped."""

    told: list[str]
    exact: bool


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
    return learner.step + newest(blocks).num_filled


def take_snapshot(
    learner: Learner,
    collector: BlockCollector,
    blocks: Sequence[Block],
    counters: dict[str, Any],
    *,
    torn: bool = False,
    extras_limit: int = 0,
) -> Snapshot:
    """Gather the state. `torn`: a vector step was broken off, so that the environments stand at
    different steps; they start their next episodes, and the block that was being filled is dropped. A
    learner's extras of more than `extras_limit` bytes are left out."""
    states = _boundaries(collector.vec) if torn else collector.vec.state()
    lost = 0
    if torn:
        lost = newest(blocks).num_filled
        clear_block(newest(blocks))
    arrays = learner.arrays()
    env_arrays, env_json = pack_states(states)
    state = {name: array for name, array in arrays.items() if not name.startswith("policy/")} | env_arrays
    state |= {f"memory/{i}": array.copy() for i, array in enumerate(collector.memory)}
    held = {prefix: block for prefix, block in zip(_PREFIXES, blocks, strict=False) if block.num_filled}
    packed = {
        name: array for prefix, block in held.items() for name, array in pack_block(block, prefix).items()
    }
    step = count_steps(learner, blocks)
    if sum(array.nbytes for array in packed.values()) > _MAX_BLOCK_BYTES:
        step, lost = learner.step, lost + sum(block.num_filled for block in held.values())
        held = {}
    else:
        state |= packed
    if len(blocks) > 1 and not blocks[0].is_full and (behind := learner.previous_weights()) is not None:
        # The next block is collected with the weights that a run without this break has there.
        state |= {f"behind/{name}": array for name, array in behind.pack().items()}
    in_hand = {
        f"{prefix}_episodes": [list(episode) for episode in block.episodes] for prefix, block in held.items()
    }
    extras = learner.extras()
    if sum(array.nbytes for array in extras.values()) > extras_limit:
        extras = {}
    return Snapshot(
        step=step,
        extras=extras,
        policy=with_prefix(arrays, "policy/"),
        state=state,
        state_json={"environments": env_json, "steps_lost": lost, "counters": counters} | in_hand,
    )


def _boundaries(vec: Vector) -> list[SlotState]:
    reason = "the run broke off inside a step"
    return [
        SlotState("boundary", number, None, 0, 0.0, (), reason=reason) for number in vec.episode_numbers()
    ]


@contextmanager
def checkpoint_errors(checkpoint: Checkpoint) -> Iterator[None]:
    """RunStateError for a checkpoint that has its checksums, and not the content that they are for."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunStateError(
            f"{checkpoint.path} was not written by a run like this ({describe(error)}); give another one"
        ) from error


def restore_snapshot(
    checkpoint: Checkpoint, learner: Learner, collector: BlockCollector, blocks: Sequence[Block]
) -> Restored:
    """Bring everything back, and say how."""
    learner.load_arrays(learner_arrays(checkpoint))
    lost = learner.load_extras(load_replay(checkpoint)) if learner.has_extras else ""
    document = checkpoint.state_json
    held = []
    for prefix, block in zip(_PREFIXES, blocks, strict=False):
        if f"{prefix}_episodes" in document:
            unpack_block(block, checkpoint.state, prefix)
            block.episodes = [Episode(*fields) for fields in document[f"{prefix}_episodes"]]
            held.append(block)
    behind = with_prefix(checkpoint.state, "behind/")
    if behind:
        learner.load_previous_weights(Weights.unpack(learner.version - 1, behind))
    states: list[SlotState] = unpack_states(checkpoint.state, document["environments"])
    batch, ways = collector.vec.restore(states)
    collector.continue_from(batch)
    for i, array in enumerate(collector.memory):
        array[...] = checkpoint.state[f"memory/{i}"]
    cut = [env_id for env_id, way in enumerate(ways) if way.startswith("boundary")]
    for env_id in cut:
        _cut_newest(held, env_id, collector)
    collector.reset_memory(rows_of(cut, collector.vec.per_env))
    told = [f"{count} of {len(ways)} environments came back by {way}" for way, count in Counter(ways).items()]
    told += [lost] if lost else []
    # Before columns had counts of their own, the rows were told that all of them had lost.
    num_lost = document.get("steps_lost", document.get("block_lost", 0) * blocks[0].num_columns)
    if num_lost:
        told.append(f"{num_lost} steps were not saved and are lost")
    return Restored(told, exact=not (cut or lost or num_lost))


def _cut_newest(blocks: Sequence[Block], env_id: int, collector: BlockCollector) -> None:
    """End the episode of an environment where its newest segments end, one of each agent, if a block has
    them."""
    rows = rows_of([env_id], collector.vec.per_env).tolist()
    for block in reversed(blocks):
        columns = np.flatnonzero((block.env_ids == env_id) & (block.filled > 0))
        if len(columns):
            for row, column in zip(rows, columns[-len(rows) :].tolist(), strict=False):
                state = tuple(array[row] for array in collector.memory)
                truncate_column(block, int(block.filled[column]), column, state)
            return


def list_stages(checkpoint: Checkpoint) -> list[int]:
    """The stages of the curriculum that the environments' episodes are of."""
    states = unpack_states(checkpoint.state, checkpoint.state_json["environments"])
    return [state.stage for state in states]


def learned_steps(checkpoint: Checkpoint) -> int:
    """Transitions that the checkpoint's policy was learned from."""
    return int(checkpoint.state["counters"][1])


def learner_arrays(checkpoint: Checkpoint) -> dict[str, Array]:
    """Parameters, optimizer, statistics and counters of the learner alone."""
    policy = {f"policy/{name}": array for name, array in checkpoint.policy.items()}
    return policy | checkpoint.state
