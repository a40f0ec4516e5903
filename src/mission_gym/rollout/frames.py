"""What a block shows: observations as they are, or where they are stacks of frames, each frame once.

A leaf has T + k rows for stacks of k, so T + 1 without. The first k are the stack that is shown at 0; every
further step adds its newest frame. What is shown at t are the k frames from row t on; but the first one of an
episode stands for those before it, as wrappers repeat it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mission_gym.data import Array, Block, Leaves, StepBatch
from mission_gym.errors import EnvContractError


def copy_obs(block: Block, t: int, batch: StepBatch) -> None:
    """Write what all columns show at t."""
    for stored, leaf in zip(block.obs, batch.obs, strict=True):
        before = stack_size(block, stored) - 1
        if before:
            if t == 0:
                stored[:before] = leaf[:, :-1].swapaxes(0, 1)
            elif t <= before:
                goes_on = ~_find_ends(block, t - 1, slice(None))
                _check_stacks(leaf[goes_on], stored[t + before - 1, goes_on])
            leaf = leaf[:, -1]
        stored[t + before] = leaf
    if block.mask is not None:
        block.mask[t] = batch.mask


def copy_rows(block: Block, t: Array, batch: StepBatch) -> None:
    """Write what the rows of a batch show, each at its own t."""
    columns = batch.env_ids
    for stored, leaf in zip(block.obs, batch.obs, strict=True):
        before = stack_size(block, stored) - 1
        if before:
            first = t == 0
            stored[:before, columns[first]] = leaf[first, :-1].swapaxes(0, 1)
            goes_on = ~first & (t <= before) & ~_find_ends(block, t - 1, columns)
            _check_stacks(leaf[goes_on], stored[t[goes_on] + before - 1, columns[goes_on]])
            leaf = leaf[:, -1]
        stored[t + before, columns] = leaf
    if block.mask is not None:
        block.mask[t, columns] = batch.mask


def read_obs(block: Block, t: int, columns: slice) -> Leaves:
    """What columns show at t, each [S, *leaf.shape]."""
    return tuple([_read(block, leaf, t, columns) for leaf in block.obs])


def _read(block: Block, stored: Array, t: int, columns: slice) -> Array:
    num = stack_size(block, stored)
    if num == 1:
        return stored[t, columns]
    first = max(0, t - num + 1)
    ended = _find_ends(block, slice(first, t), columns)
    begun = np.where(ended, np.arange(first + 1, t + 1)[:, None], -num).max(axis=0, initial=-num)
    rows = np.maximum(t + np.arange(num), begun[:, None] + num - 1)
    mine = stored[:, columns]
    shown: Array = mine[rows, np.arange(mine.shape[1])[:, None]]
    return shown


def index_frames(block: Block, num: int) -> Array:
    """Where the frames of each observation are, int64 [T + 1, S, num], in a leaf [(T + num) * S, ...]."""
    num_steps, num_rows = block.reward.shape
    ended, steps = _find_ends(block, slice(None), slice(None)), np.arange(num_steps + 1)[:, None]
    begun = np.full((num_steps + 1, num_rows), -num)  # the row that an episode began at, if it is in here
    np.maximum.accumulate(np.where(ended, steps[1:], -num), axis=0, out=begun[1:])
    rows = np.maximum((steps + np.arange(num))[:, None], begun[:, :, None] + num - 1)
    places: Array = rows * num_rows + np.arange(num_rows)[:, None]
    return places


def stack_size(block: Block, stored: Array) -> int:
    """How many a leaf of the block shows at a time."""
    return len(stored) - len(block.reward)


def _check_stacks(stacks: Array, newest: Array) -> None:
    """Where episodes go on, what is behind the newest frame must be what was the newest; EnvContractError if
    it is not. The first steps of each block are looked at."""
    if not np.array_equal(stacks[:, -2], newest):
        raise EnvContractError(
            "an observation is not the stack of the last frames that its wrapper promises: the one before the"
            " newest is not what was shown then. An environment that changes the array that it gave must give"
            " a copy of it; `--wrap frame-stack:4` copies, Gymnasium's FrameStackObservation does not"
        )


def _find_ends(block: Block, rows: Any, columns: Any) -> Any:
    """Behind which transitions another episode begins, bool."""
    terminated, truncated = block.terminated[rows, columns], block.truncated[rows, columns]
    return terminated | truncated | ~block.valid[rows, columns]
