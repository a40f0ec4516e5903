"""Blocks [T, S]: made, sliced by columns, copied, truncated, sorted, packed for a checkpoint.

Observations are stored as they are, or as single frames if they are stacks of frames. A leaf has T + k frames
for stacks of k, so T + 1 without stacks. The first k are the stack at step 0; every further step adds its
newest frame. The observation at t is frames t to t + k - 1, except that frames from before the episode are
replaced by its first one, as frame-stack wrappers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mission_gym.data import Array, Block, EnvSpec, Episode, Final, Leaves, StepBatch, ends_episode
from mission_gym.errors import EnvContractError

_STEP_FIELDS = ("action", "log_prob", "reward", "terminated", "truncated", "valid")  # each [T, S, ...]
_COLUMN_FIELDS = ("env_ids", "version", "filled")  # each [S]


def make_block(
    spec: EnvSpec,
    num_steps: int,
    num_columns: int,
    allocate: Callable[[Any, Any], Array] = np.zeros,
    state: Leaves = (),
) -> Block:
    """An empty block. allocate: makes an array from shape and dtype. state: arrays like the policy's memory.

    Fill counts, versions and environments are never in shared memory: each process keeps its own.
    """
    shape = (num_steps, num_columns)
    return Block(
        obs=tuple(
            allocate((num_steps + leaf.frames, num_columns, *leaf.stored_shape), leaf.dtype)
            for leaf in spec.leaves
        ),
        mask=allocate((num_steps + 1, num_columns, spec.mask_size), np.bool_) if spec.mask_size else None,
        action=allocate((*shape, spec.action.num_stored), spec.action.stored_dtype),
        log_prob=allocate(shape, np.float32),
        reward=allocate(shape, np.float32),
        terminated=allocate(shape, np.bool_),
        truncated=allocate(shape, np.bool_),
        valid=allocate(shape, np.bool_),
        env_ids=np.arange(num_columns, dtype=np.int64) // spec.num_agents,
        version=np.zeros(num_columns, np.int64),
        filled=np.zeros(num_columns, np.int64),
        state=tuple(allocate((num_columns, *array.shape[1:]), array.dtype) for array in state),
    )


def slice_block(block: Block, num_steps: int, columns: slice) -> Block:
    """Views of the first `num_steps` steps of some columns; finals and episodes are empty."""
    return Block(
        obs=tuple(leaf[: num_steps + stack_size(block, leaf), columns] for leaf in block.obs),
        mask=None if block.mask is None else block.mask[: num_steps + 1, columns],
        env_ids=block.env_ids[columns],
        version=block.version[columns],
        filled=block.filled[columns],
        state=tuple(array[columns] for array in block.state),
        **{name: getattr(block, name)[:num_steps, columns] for name in _STEP_FIELDS},
    )


def copy_columns(source: Block, columns: slice, target: Block, first: int) -> None:
    """Copy the arrays of some columns to the columns of another block from `first` on."""
    into = slice(first, first + columns.stop - columns.start)
    for own, other in zip(_step_arrays(target).values(), _step_arrays(source).values(), strict=True):
        own[:, into] = other[:, columns]
    for own, other in zip(_column_arrays(target).values(), _column_arrays(source).values(), strict=True):
        own[into] = other[columns]


def _step_arrays(block: Block) -> dict[str, Array]:
    """The arrays over time by name: observations and masks [T + 1 or more, S, ...], others [T, S, ...]."""
    arrays = {f"obs/{i}": leaf for i, leaf in enumerate(block.obs)}
    if block.mask is not None:
        arrays["mask"] = block.mask
    return arrays | {name: getattr(block, name) for name in _STEP_FIELDS}


def _column_arrays(block: Block) -> dict[str, Array]:
    """The arrays [S, ...] by name."""
    state = {f"state/{i}": array for i, array in enumerate(block.state)}
    return state | {name: getattr(block, name) for name in _COLUMN_FIELDS}


def move_episodes(source: Block, columns: slice, target: Block, first: int) -> None:
    """Move the finals of some columns, and all episodes, to another block's columns from `first` on."""
    for final in source.finals:
        if columns.start <= final.column < columns.stop:
            target.finals.append(final._replace(column=first + final.column - columns.start))
    target.episodes += source.episodes
    source.episodes = []


def block_bytes(spec: EnvSpec, num_steps: int, num_columns: int, state: Leaves = ()) -> int:
    """The memory of one block. state: arrays like the policy's memory, each [B, ...]."""
    obs = sum((num_steps + leaf.frames) * (leaf.size_bytes // leaf.frames) for leaf in spec.leaves)
    action = np.dtype(spec.action.stored_dtype).itemsize * spec.action.num_stored
    rest = num_steps * (action + 11)  # log-probability and reward, three flags
    held = sum(int(array[0].nbytes) for array in state)
    return num_columns * (obs + (num_steps + 1) * spec.mask_size + rest + held)


def store_state(block: Block, memory: Leaves, columns: Any) -> None:
    """Store the policy's memory at the beginning of these columns."""
    for stored, own in zip(block.state, memory, strict=True):
        stored[columns] = own[columns]


def add_final(block: Block, t: int, column: int, obs: Leaves, mask: Array | None, state: Leaves = ()) -> None:
    """Add the last observation, mask and policy memory of an episode that was truncated at step t."""
    obs, state = tuple(leaf.copy() for leaf in obs), tuple(array.copy() for array in state)
    block.finals.append(Final(t, column, obs, None if mask is None else mask.copy(), state))


def _shown(block: Block, t: int, column: int) -> tuple[Leaves, Array | None]:
    """The observation and mask of a column at t."""
    mask = None if block.mask is None else block.mask[t, column]
    return tuple(leaf[0] for leaf in read_obs(block, t, slice(column, column + 1))), mask


def clear_block(block: Block) -> None:
    """Empty the block."""
    block.filled[:] = 0
    block.finals, block.episodes = [], []


def clear_columns(block: Block, columns: slice) -> None:
    """Empty some columns, with their finals and episodes."""
    block.filled[columns] = 0
    block.finals = [final for final in block.finals if not columns.start <= final.column < columns.stop]
    gone = set(block.env_ids[columns].tolist())
    block.episodes = [episode for episode in block.episodes if episode.env_id not in gone]


def truncate_column(block: Block, end: int, column: int, state: Leaves = ()) -> None:
    """End the running episode of a column before step `end`, because its environment was lost.

    Its last transition bootstraps from the last observation that was seen. state: the policy's memory there.
    """
    t = end - 1
    if t < 0 or block.terminated[t, column] or block.truncated[t, column]:
        return
    add_final(block, t, column, *_shown(block, t + 1, column), state)
    block.truncated[t, column] = True


def invalidate_transition(block: Block, t: int, column: int, state: Leaves = ()) -> None:
    """Mark a transition as lost in a failure; the one before it bootstraps from the last good observation."""
    last = _shown(block, t, column)  # before the flags change it
    truncate_column(block, t, column, state)
    block.action[t, column] = block.log_prob[t, column] = block.reward[t, column] = 0
    block.valid[t, column] = block.terminated[t, column] = False
    block.truncated[t, column] = True
    if block.mask is not None:
        block.mask[t, column] = True  # the blank action must be legal
    add_final(block, t, column, *last, state)


def lose_segment(segment: Block, state: Leaves, *, under_way: bool) -> None:
    """Record that the environments of a segment were lost. under_way: during a step, which is then not valid.

    state: the policy's memory [S, ...] for the truncated episodes.
    """
    for column, t in enumerate(segment.filled.tolist()):
        own = tuple(array[column] for array in state)
        if under_way and t < segment.num_steps:
            invalidate_transition(segment, t, column, own)
            segment.filled[column] = t + 1
        else:
            truncate_column(segment, t, column, own)


def sort_finals(block: Block) -> None:
    """Sort the final observations by (t, column)."""
    block.finals.sort(key=lambda final: (final.t, final.column))


def sort_episodes(block: Block) -> None:
    """Sort the episodes of a block of all environments by the step and column at which they ended, which is
    the order of a single collector. With several agents the flags do not show when the last one ended, so
    the order is by environment."""
    if len(np.unique(block.env_ids)) < block.num_columns:
        block.episodes.sort(key=lambda episode: (episode.env_id, episode.number))
        return
    queues: dict[int, list[Episode]] = {}
    for episode in sorted(block.episodes, key=lambda episode: (episode.env_id, episode.number)):
        queues.setdefault(episode.env_id, []).append(episode)
    has_data = np.arange(block.num_steps)[:, None] < block.filled
    ended = (block.terminated | block.truncated) & has_data
    ordered = [queues[column].pop(0) for _, column in np.argwhere(ended).tolist() if queues.get(column)]
    block.episodes = ordered + [episode for queue in queues.values() for episode in queue]


def pack_block(block: Block, prefix: str = "block") -> dict[str, Array]:
    """The filled part of a block as named arrays, without its episodes."""
    t = int(block.filled.max())
    arrays = {name: array[: t + len(array) - block.num_steps] for name, array in _step_arrays(block).items()}
    arrays |= _column_arrays(block)
    if block.finals:
        arrays["final_at"] = np.array([(final.t, final.column) for final in block.finals], np.int64)
        for name, values in (("final", "obs"), ("final_state", "state")):
            stacked = zip(*(getattr(final, values) for final in block.finals), strict=True)
            arrays |= {f"{name}/{i}": np.stack(leaf) for i, leaf in enumerate(stacked)}
        masks = [final.mask for final in block.finals if final.mask is not None]
        if masks:
            arrays["final_mask"] = np.stack(masks)
    return {f"{prefix}/{name}": np.ascontiguousarray(array) for name, array in arrays.items()}


def unpack_block(block: Block, arrays: dict[str, Array], prefix: str = "block") -> None:
    """Restore the filled part of a packed block."""
    t = len(arrays[f"{prefix}/reward"])
    for name, array in _step_arrays(block).items():
        array[: t + len(array) - block.num_steps] = arrays[f"{prefix}/{name}"]
    for name, array in _column_arrays(block).items():
        array[:] = arrays[f"{prefix}/{name}"]
    if f"{prefix}/final_at" in arrays:
        places = arrays[f"{prefix}/final_at"].tolist()
        leaves = [arrays[f"{prefix}/final/{i}"] for i in range(len(block.obs))]
        states = [arrays[f"{prefix}/final_state/{i}"] for i in range(len(block.state))]
        masks = arrays.get(f"{prefix}/final_mask", [None] * len(places))
        block.finals = [
            Final(t, column, _take(leaves, i), masks[i], _take(states, i))
            for i, (t, column) in enumerate(places)
        ]


def _take(arrays: list[Array], index: int) -> Leaves:
    return tuple(np.array(array[index]) for array in arrays)


def write_obs(block: Block, t: int, batch: StepBatch) -> None:
    """Write the observations and masks of all columns at step t."""
    for stored, leaf in zip(block.obs, batch.obs, strict=True):
        before = stack_size(block, stored) - 1
        if before:
            if t == 0:
                stored[:before] = leaf[:, :-1].swapaxes(0, 1)
            elif t <= before:
                continues = ~_find_ends(block, t - 1, slice(None))
                _check_stacks(leaf[continues], stored[t + before - 1, continues])
            leaf = leaf[:, -1]
        stored[t + before] = leaf
    if block.mask is not None:
        block.mask[t] = batch.mask


def write_obs_at(block: Block, t: Array, batch: StepBatch) -> None:
    """Write the observations and masks of a batch, each row at its own step t[i] and column."""
    columns = batch.env_ids
    for stored, leaf in zip(block.obs, batch.obs, strict=True):
        before = stack_size(block, stored) - 1
        if before:
            first = t == 0
            stored[:before, columns[first]] = leaf[first, :-1].swapaxes(0, 1)
            continues = ~first & (t <= before) & ~_find_ends(block, t - 1, columns)
            _check_stacks(leaf[continues], stored[t[continues] + before - 1, columns[continues]])
            leaf = leaf[:, -1]
        stored[t + before, columns] = leaf
    if block.mask is not None:
        block.mask[t, columns] = batch.mask


def read_obs(block: Block, t: int, columns: slice) -> Leaves:
    """The observations of some columns at step t, each [S, *leaf.shape]."""
    return tuple([_read(block, leaf, t, columns) for leaf in block.obs])


def _read(block: Block, stored: Array, t: int, columns: slice) -> Array:
    num = stack_size(block, stored)
    if num == 1:
        return stored[t, columns]
    first = max(0, t - num + 1)
    ended = _find_ends(block, slice(first, t), columns)
    begun = np.where(ended, np.arange(first + 1, t + 1)[:, None], -num).max(axis=0, initial=-num)
    frames = np.maximum(t + np.arange(num), begun[:, None] + num - 1)
    own = stored[:, columns]
    stacks: Array = own[frames, np.arange(own.shape[1])[:, None]]
    return stacks


def index_frames(block: Block, num: int) -> Array:
    """The frames of each observation, int64 [T + 1, S, num], as indices into a leaf [(T + num) * S, ...]."""
    num_steps, num_columns = block.reward.shape
    ended, steps = _find_ends(block, slice(None), slice(None)), np.arange(num_steps + 1)[:, None]
    begun = np.full(
        (num_steps + 1, num_columns), -num
    )  # the step at which the episode began, if in the block
    np.maximum.accumulate(np.where(ended, steps[1:], -num), axis=0, out=begun[1:])
    frames = np.maximum((steps + np.arange(num))[:, None], begun[:, :, None] + num - 1)
    index: Array = frames * num_columns + np.arange(num_columns)[:, None]
    return index


def stack_size(block: Block, stored: Array) -> int:
    """The number of frames in an observation of this leaf, 1 without stacks."""
    return len(stored) - len(block.reward)


def _check_stacks(stacks: Array, newest: Array) -> None:
    """EnvContractError unless the second newest frame of each stack is the newest of the step before. Only
    the first steps of each block are checked."""
    if not np.array_equal(stacks[:, -2], newest):
        raise EnvContractError(
            "an observation is not the stack of the last frames, as its wrapper declares: its second newest"
            " frame is not the newest one of the step before. An environment that changes an array after it"
            " returned it must return a copy instead; `--wrap frame-stack:4` copies, Gymnasium's"
            " FrameStackObservation does not"
        )


def _find_ends(block: Block, steps: Any, columns: Any) -> Any:
    """Which transitions are the last of their episode, bool."""
    return ends_episode(
        block.terminated[steps, columns], block.truncated[steps, columns], block.valid[steps, columns]
    )
