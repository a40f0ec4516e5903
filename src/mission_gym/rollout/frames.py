"""Observations in a block: stored as they are, or as single frames if they are stacks of frames.

A leaf has T + k frames for stacks of k, so T + 1 without stacks. The first k are the stack at step 0; every
further step adds its newest frame. The observation at t is frames t to t + k - 1, except that frames from
before the episode are replaced by its first one, as frame-stack wrappers do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mission_gym.data import Array, Block, Leaves, StepBatch, ends_episode
from mission_gym.errors import EnvContractError


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
