"""Operations on blocks that learners share: flattening, checking, minibatches, noise for timing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mission_gym.data import Array, Block, EnvSpec, FrameIndex, LeafSpec, Leaves, ends_episode
from mission_gym.errors import NotFiniteError
from mission_gym.rollout.blocks import index_frames, make_block, stack_size


def with_prefix(arrays: dict[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays with this prefix in their names, which is removed."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def flatten_obs(block: Block) -> tuple[Leaves, FrameIndex]:
    """The (T + 1) * S observations of a block, followed by the final observations of truncated episodes."""
    finals = tuple(np.stack(leaf) for leaf in zip(*(final.obs for final in block.finals), strict=True))
    leaves, frame_index = list[Array](), list[Array | None]()
    for number, stored in enumerate(block.obs):
        leaf, num = stored.reshape((-1, *stored.shape[2:])), stack_size(block, stored)
        index = index_frames(block, num).reshape(-1, num) if num > 1 else None
        if finals:
            last = finals[number]
            if index is not None:
                own = len(leaf) + np.arange(len(last) * num).reshape(-1, num)
                index, last = np.concatenate([index, own]), last.reshape((-1, *last.shape[2:]))
            leaf = np.concatenate([leaf, last])
        leaves.append(leaf)
        frame_index.append(index)
    return tuple(leaves), tuple(frame_index) if any(index is not None for index in frame_index) else ()


def unstack_frames(obs: Leaves, leaves: Sequence[LeafSpec]) -> tuple[Leaves, FrameIndex]:
    """Observations [N, ...] as a block would store them: stacks as frames with their index."""
    unstacked = tuple(
        given.reshape((-1, *leaf.stored_shape)) if leaf.frames > 1 else given
        for given, leaf in zip(obs, leaves, strict=True)
    )
    if all(leaf.frames == 1 for leaf in leaves):
        return unstacked, ()
    return unstacked, tuple(
        np.arange(len(frames)).reshape(-1, leaf.frames) if leaf.frames > 1 else None
        for frames, leaf in zip(unstacked, leaves, strict=True)
    )


def check_finite(block: Block, update: int | None) -> None:
    """Raise NotFiniteError with the tensor, step and environment, before anything is learned from the block.

    update: None for the block that is played before the first update.
    """
    when, kept, then = f"update {update}", "the weights are those before this update", ", then resume"
    if update is None:
        when, kept, then = "a short block before the first update", "nothing was learned", ""
    for number, array in enumerate((*block.obs, block.reward)):
        if array.dtype.kind != "f" or math.isfinite(np.add.reduce(array, axis=None, dtype=np.float64)):
            continue
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            name = "reward" if number == len(block.obs) else f"observation leaf {number}"
            t, column = (int(x) for x in bad[0][:2])
            t = max(0, t - max(0, stack_size(block, array) - 1))
            raise NotFiniteError(
                f"{name} of environment {block.env_ids[column]} is {array[tuple(bad[0])]} at step {t} of"
                f" {when}; {kept}. Fix the environment (mission-gym check finds the step){then}"
            )
    for final in block.finals:
        if not all(np.isfinite(leaf).all() for leaf in final.obs):
            raise NotFiniteError(
                f"final observation of environment {block.env_ids[final.column]} is not finite at step"
                f" {final.t} of {when}; {kept}"
            )


def draw_rows(rng: np.random.Generator, valid: Array, batch_size: int) -> Array:
    """Minibatches of any rows: every valid row t * S + s of a block [T, S] once, int64 [minibatches,
    batch_size].

    The size divides the block. Invalid rows, which have no weight, fill up the last minibatch: gradient steps
    have a fixed shape.
    """
    order = rng.permutation(valid.size)
    if not valid.all():
        is_valid = valid.ravel()[order]
        num_minibatches = max(1, math.ceil(np.count_nonzero(is_valid) / batch_size))
        order = np.concatenate([order[is_valid], order[~is_valid]])[: num_minibatches * batch_size]
    return order.reshape(-1, batch_size)


def draw_chunks(rng: np.random.Generator, valid: Array, chunk: int, batch_size: int) -> Array:
    """Minibatches of whole chunks, for policies with memory: int64 [minibatches, batch_size].

    A block [T, S] has T / chunk * S chunks, each of `chunk` steps of one column. Every chunk with a valid
    transition is in one minibatch. A minibatch is [chunk, C] in the order of time, so its first C rows are
    the first steps of its chunks.
    """
    num_columns = valid.shape[1]
    has_valid = np.logical_or.reduce(valid.reshape(-1, chunk, num_columns), axis=1)
    drawn = draw_rows(rng, has_valid, batch_size // chunk)  # k * S + s for chunk k of column s
    first = drawn // num_columns * chunk * num_columns + drawn % num_columns
    order: Array = first[:, None] + num_columns * np.arange(chunk)[:, None]
    return order.reshape(len(drawn), -1)


def make_noise_block(spec: EnvSpec, num_steps: int, num_columns: int, state: Leaves = ()) -> Block:
    """A full block of random numbers, for timing. state: the policy's initial memory, each [S, ...]."""
    rng = np.random.default_rng(0)
    block = make_block(spec, num_steps, num_columns, state=state)
    for leaf in block.obs:
        if leaf.dtype.kind == "f":
            leaf[:] = rng.standard_normal(leaf.shape, np.float32)
    if block.mask is not None:
        block.mask[:] = True
    block.reward[:] = rng.standard_normal(block.reward.shape, np.float32)
    block.valid[:] = True
    block.filled[:] = num_steps
    return block


@dataclass(slots=True)
class SequenceMemory:
    """The memory of a recurrent policy over a block [T, S], which is learned in chunks of steps.

    before_chunks: set by the kernel's pass over the block, with its own weights: the memory before each
    chunk, then the one after the block, each [T / chunk + 1, S, ...].
    """

    state: Leaves  # before the first step, each [S, ...]
    starts: Array  # bool [T + 1, S]: an episode starts here, so memory is reset before the step
    final_state: Leaves  # before each final observation, and so before any reset; each [E, ...]
    chunk: int  # steps; divides T
    before_chunks: Leaves = ()

    @property
    def after_block(self) -> Leaves:
        """The memory with which the next block begins, each [S, ...]."""
        return tuple(each[-1] * ~self.starts[-1][:, None] for each in self.before_chunks)


def read_memory(block: Block, chunk: int) -> SequenceMemory | None:
    """The memory of the policy that collected a block, None if it has none."""
    if not block.state:
        return None
    starts = np.zeros((block.num_steps + 1, block.num_columns), bool)
    starts[1:] = ends_episode(block.terminated, block.truncated, block.valid)
    final_state = tuple(
        np.array([final.state[i] for final in block.finals], np.float32).reshape(-1, *array.shape[1:])
        for i, array in enumerate(block.state)
    )
    return SequenceMemory(block.state, starts, final_state, chunk)
