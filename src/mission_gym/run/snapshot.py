"""A run in the middle: what a checkpoint holds, and how everything comes back from it.

A checkpoint is the state before an update: learner, statistics, counters, environments, and the block
in hand where one was begun. Random streams are functions of the counters, so they need no room.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from mission_gym.data import Array, Block, Episode
from mission_gym.env.resume import SlotState, pack_states, unpack_states
from mission_gym.learner.ppo import PpoLearner, strip
from mission_gym.rollout.collector import BlockCollector, cut_row, pack_block, unpack_block
from mission_gym.run.assemble import Vector
from mission_gym.store.checkpoints import Checkpoint

_MAX_BLOCK_BYTES = 512 << 20  # a larger block in hand is collected again rather than saved in haste


@dataclass(slots=True)
class Snapshot:
    """The parts of a checkpoint, ready to be written."""

    step: int  # transitions collected, the block in hand included
    policy: dict[str, Array]
    state: dict[str, Array]
    state_json: dict[str, Any]


def take_snapshot(
    learner: PpoLearner, vec: Vector, block: Block, counters: dict[str, Any], *, torn: bool = False
) -> Snapshot:
    """Gather the state. `torn`: a vector step was broken off, so that the environments stand at
    different steps; they start their next episodes, and the block in hand is dropped."""
    states = _boundaries(vec) if torn else vec.state()
    arrays = learner.arrays()
    filled, lost = (0, block.filled) if torn else (block.filled, 0)
    env_arrays, env_json = pack_states(states)
    state = {name: array for name, array in arrays.items() if not name.startswith("policy/")} | env_arrays
    episodes: list[Episode] = []
    if filled:
        packed = pack_block(block)
        if sum(array.nbytes for array in packed.values()) <= _MAX_BLOCK_BYTES:
            state |= packed
            episodes = block.episodes
        else:
            lost, filled = filled, 0
    return Snapshot(
        step=learner.step + filled * block.num_rows,
        policy=strip(arrays, "policy/"),
        state=state,
        state_json={
            "environments": env_json,
            "block_filled": filled,
            "block_lost": lost,
            "block_episodes": [list(episode) for episode in episodes],
            "counters": counters,
        },
    )


def _boundaries(vec: Vector) -> list[SlotState]:
    reason = "the run broke off inside a step"
    return [
        SlotState("boundary", number, None, 0, 0.0, (), reason=reason) for number in vec.episode_numbers()
    ]


def restore_snapshot(
    checkpoint: Checkpoint, learner: PpoLearner, vec: Vector, block: Block, collector: BlockCollector
) -> list[str]:
    """Bring everything back; returns how the environments came back, to be said aloud."""
    load_learner(checkpoint, learner)
    document = checkpoint.state_json
    if document["block_filled"]:
        unpack_block(block, checkpoint.state)
        block.episodes = [Episode(*fields) for fields in document["block_episodes"]]
    states: list[SlotState] = unpack_states(checkpoint.state, document["environments"])
    batch, ways = vec.restore(states)
    collector.go_on(batch)
    for row, way in enumerate(ways):
        if way.startswith("boundary"):
            cut_row(block, block.filled, row)
            if learner.return_scale is not None:
                learner.return_scale.sums[row] = 0.0
    told = [f"{count} of {len(ways)} environments came back by {way}" for way, count in Counter(ways).items()]
    if document["block_lost"]:
        told.append(f"{document['block_lost'] * block.num_rows} steps were not saved and are lost")
    return told


def learned_steps(checkpoint: Checkpoint) -> int:
    """Transitions that the checkpoint's policy was learned from."""
    return int(checkpoint.state["counters"][1])


def load_learner(checkpoint: Checkpoint, learner: PpoLearner) -> None:
    """Parameters, optimizer, statistics and counters of the learner alone."""
    policy = {f"policy/{name}": array for name, array in checkpoint.policy.items()}
    learner.load_arrays(policy | checkpoint.state)
