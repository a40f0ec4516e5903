"""The state of a run: its counters, the context that its parts share, and checkpoints of all of it.

A checkpoint is the state before an update: learner, statistics, counters, environments, and the blocks in
progress. Random streams are functions of the counters, so they need no storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Settled
from mission_gym.data import Array, Block, EnvSpec, Episode, Weights
from mission_gym.env.resume import SlotState, pack_states, unpack_states
from mission_gym.errors import RunStateError, describe
from mission_gym.learner.blocks import with_prefix
from mission_gym.learner.contract import Learner
from mission_gym.learner.loop import current_block
from mission_gym.rollout.blocks import clear_block, pack_block, truncate_column, unpack_block
from mission_gym.rollout.collector import BlockCollector
from mission_gym.run.environment import Environment
from mission_gym.run.recorder import Recorder
from mission_gym.store.checkpoints import Checkpoint, load_replay
from mission_gym.store.rundir import RunDir
from mission_gym.vector.arrays import rows_of
from mission_gym.vector.base import Vector

_MAX_BLOCK_BYTES = 512 << 20  # larger blocks in progress are collected again instead of saved
_PREFIXES = ("block", "next")  # of the blocks in progress, in order


@dataclass(slots=True)
class StageState:
    """A run's position in its curriculum."""

    stage: int = 0
    began_at: int = 0  # step
    # Values of the last episodes by environment, for the rule of that name; empty before the first.
    until: list[list[float]] = field(default_factory=list)
    back: list[list[float]] = field(default_factory=list)
    block: tuple[int, int] | None = None  # the block in progress, and the stage of its episodes


@dataclass(slots=True)
class RunState:
    """The counters of a run that a checkpoint stores."""

    last_eval: int = 0  # step
    last_save: int = -1  # step
    began_at: int = 0  # the first step of this run; a branch starts after its parent's
    episode_offset: int = 0  # the number of the first episode
    env_failures: int = 0
    eval_steps: int = 0  # played in evaluations
    goal_checks: int = 0  # times that the goal was checked on further seeds
    cut_sequences: int = 0
    settings: dict[str, float] = field(default_factory=dict)  # that replace scheduled values, by name
    curriculum: StageState | None = None

    def document(self) -> dict[str, Any]:
        """The counters as JSON; `read_run_state` reads them."""
        return asdict(self)

    def apply_settings(self, resolved: Resolved) -> Resolved:
        """The config with `settings` in place of the schedules of these values."""
        if not self.settings:
            return resolved
        algo = resolved.config.run.algo
        values: dict[str, Any] = {f"{algo}.{name}": value for name, value in self.settings.items()}
        values |= {f"{algo}.{name}_final": None for name in self.settings}
        return resolved.with_values(values, "update.set")


_RUN_STATE = TypeAdapter(RunState)


def read_run_state(checkpoint: Checkpoint) -> RunState:
    """The counters that a checkpoint stores."""
    return _RUN_STATE.validate_python(checkpoint.state_json["counters"]["session"])


@dataclass(eq=False)
class RunContext:
    """Everything that the parts of a session share."""

    run: RunDir
    resolved: Resolved  # eval_freq may rise once, before the first step
    environment: Environment
    learner: Learner
    collector: BlockCollector
    blocks: list[Block]
    recorder: Recorder
    state: RunState
    best_step: int | None = None  # of the best checkpoint
    goal: str | None = None  # the stop rule that was satisfied

    @property
    def config(self) -> Settled:
        return self.resolved.settled

    @property
    def spec(self) -> EnvSpec:
        return self.environment.spec

    @property
    def step(self) -> int:
        """Transitions learned from, and those of the block in progress."""
        return count_steps(self.learner, self.blocks)


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    notes: list[str]
    exact: bool  # the run continues as if it had not been stopped


@dataclass(slots=True)
class Snapshot:
    """The parts of a checkpoint, ready to be written."""

    step: int  # see count_steps
    policy: dict[str, Array]
    state: dict[str, Array]
    state_json: dict[str, Any]
    extras: dict[str, Array]  # of the last checkpoint only; views, to be written at once


def count_steps(learner: Learner, blocks: Sequence[Block]) -> int:
    """Transitions learned from, and those of the block in progress. A full block that waits for its update
    does not count yet, so that a step always names the same policy, with overlap or without."""
    return learner.step + current_block(blocks).num_filled


def take_snapshot(
    learner: Learner,
    collector: BlockCollector,
    blocks: Sequence[Block],
    counters: dict[str, Any],
    *,
    interrupted_mid_step: bool = False,
    extras_limit: int = 0,
) -> Snapshot:
    """Gather the state of a run.

    interrupted_mid_step: a vector step was interrupted and the environments are at different steps, so they
    start their next episodes, and the block in progress is dropped. extras_limit: larger extras of a learner
    are left out.
    """
    states = _boundaries(collector.vec) if interrupted_mid_step else collector.vec.state()
    lost = 0
    if interrupted_mid_step:
        lost = current_block(blocks).num_filled
        clear_block(current_block(blocks))
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
    if len(blocks) > 1 and not blocks[0].is_full and (previous := learner.previous_weights()) is not None:
        # An uninterrupted run would collect the next block with these weights.
        state |= {f"previous_weights/{name}": array for name, array in previous.pack().items()}
    episodes = {
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
        state_json={"environments": env_json, "steps_lost": lost, "counters": counters} | episodes,
    )


def _boundaries(vec: Vector) -> list[SlotState]:
    reason = "the run was interrupted within a step"
    return [
        SlotState("boundary", number, None, 0, 0.0, (), reason=reason) for number in vec.episode_numbers()
    ]


@contextmanager
def checkpoint_errors(checkpoint: Checkpoint) -> Iterator[None]:
    """Raise RunStateError if a checkpoint has valid checksums but unexpected content."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunStateError(
            f"{checkpoint.path} was not written by a run like this ({describe(error)}); give another one"
        ) from error


def restore_snapshot(
    checkpoint: Checkpoint, learner: Learner, collector: BlockCollector, blocks: Sequence[Block]
) -> Restored:
    """Restore learner, environments and blocks from a checkpoint."""
    learner.load_arrays(learner_arrays(checkpoint))
    lost = learner.load_extras(load_replay(checkpoint)) if learner.has_extras else ""
    document = checkpoint.state_json
    held = []
    for prefix, block in zip(_PREFIXES, blocks, strict=False):
        if f"{prefix}_episodes" in document:
            unpack_block(block, checkpoint.state, prefix)
            block.episodes = [Episode(*fields) for fields in document[f"{prefix}_episodes"]]
            held.append(block)
    previous = with_prefix(checkpoint.state, "previous_weights/")
    if previous:
        learner.load_previous_weights(Weights.unpack(learner.version - 1, previous))
    batch, ways = collector.vec.restore(_slot_states(checkpoint))
    collector.continue_from(batch)
    for i, array in enumerate(collector.memory):
        array[...] = checkpoint.state[f"memory/{i}"]
    cut = [env_id for env_id, way in enumerate(ways) if way.startswith("boundary")]
    for env_id in cut:
        _truncate_newest(held, env_id, collector)
    collector.reset_memory(rows_of(cut, collector.vec.per_env))
    notes = [f"{count} of {len(ways)} environments restored by {way}" for way, count in Counter(ways).items()]
    notes += [lost] if lost else []
    if num_lost := document["steps_lost"]:
        notes.append(f"{num_lost} steps were not saved and are lost")
    return Restored(notes, exact=not (cut or lost or num_lost))


def _truncate_newest(blocks: Sequence[Block], env_id: int, collector: BlockCollector) -> None:
    """Truncate an environment's episode at the end of its newest segments, one per agent, if a block has
    them."""
    rows = rows_of([env_id], collector.vec.per_env).tolist()
    for block in reversed(blocks):
        columns = np.flatnonzero((block.env_ids == env_id) & (block.filled > 0))
        if len(columns):
            for row, column in zip(rows, columns[-len(rows) :].tolist(), strict=False):
                state = tuple(array[row] for array in collector.memory)
                truncate_column(block, int(block.filled[column]), column, state)
            return


def _slot_states(checkpoint: Checkpoint) -> list[SlotState]:
    return unpack_states(checkpoint.state, checkpoint.state_json["environments"])


def list_stages(checkpoint: Checkpoint) -> list[int]:
    """The curriculum stages of the environments' episodes."""
    return [state.stage for state in _slot_states(checkpoint)]


def count_episodes(checkpoint: Checkpoint) -> int:
    """The number of the next episode that no environment has played."""
    played = max(state.episode for state in _slot_states(checkpoint))
    return read_run_state(checkpoint).episode_offset + played + 1


def learned_steps(checkpoint: Checkpoint) -> int:
    """Transitions that the checkpoint's policy was learned from."""
    return int(checkpoint.state["counters"][1])


def learner_arrays(checkpoint: Checkpoint) -> dict[str, Array]:
    """Parameters, optimizer, statistics and counters of the learner."""
    policy = {f"policy/{name}": array for name, array in checkpoint.policy.items()}
    return policy | checkpoint.state
