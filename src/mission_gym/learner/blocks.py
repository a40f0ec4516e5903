"""What every learner does with what comes in: statistics begun, blocks read and checked, arrays by prefix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mission_gym.data import Array, Block, FrameIndex, LeafSpec, Leaves
from mission_gym.errors import NotFiniteError
from mission_gym.policy import Encoder
from mission_gym.rollout.frames import index_frames, stack_size


def prime_encoder(encoder: Encoder, obs: Leaves) -> None:
    """Start the statistics of an encoder."""
    if encoder.normalizer is not None:
        encoder.normalizer.merge(encoder.flatten(obs))


def with_prefix(arrays: dict[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def flatten_obs(block: Block) -> tuple[Leaves, FrameIndex]:
    """What a block shows, (T + 1) * S observations, and behind it what truncated episodes ended with."""
    finals = tuple(np.stack(leaf) for leaf in zip(*(final.obs for final in block.finals), strict=True))
    leaves, places = list[Array](), list[Array | None]()
    for number, stored in enumerate(block.obs):
        leaf, num = stored.reshape((-1, *stored.shape[2:])), stack_size(block, stored)
        mine = index_frames(block, num).reshape(-1, num) if num > 1 else None
        if finals:
            last = finals[number]
            if mine is not None:
                own = len(leaf) + np.arange(len(last) * num).reshape(-1, num)
                mine, last = np.concatenate([mine, own]), last.reshape((-1, *last.shape[2:]))
            leaf = np.concatenate([leaf, last])
        leaves.append(leaf)
        places.append(mine)
    return tuple(leaves), tuple(places) if any(mine is not None for mine in places) else ()


def unstack_frames(obs: Leaves, leaves: Sequence[LeafSpec]) -> tuple[Leaves, FrameIndex]:
    """Observations [N, ...] as a block would hold them: stacks as frames."""
    apart = tuple(
        given.reshape((-1, *leaf.stored_shape)) if leaf.frames > 1 else given
        for given, leaf in zip(obs, leaves, strict=True)
    )
    if all(leaf.frames == 1 for leaf in leaves):
        return apart, ()
    return apart, tuple(
        np.arange(len(frames)).reshape(-1, leaf.frames) if leaf.frames > 1 else None
        for frames, leaf in zip(apart, leaves, strict=True)
    )


def check_finite(block: Block, update: int | None) -> None:
    """Raise NotFiniteError that names the tensor, update and environment; nothing was learned from it yet.

    update: None for a block that is played before the first.
    """
    when, kept, then = f"update {update}", "the weights are as before this update", ", then resume"
    if update is None:
        when, kept, then = "a short block before the first update", "nothing was learned", ""
    for place, array in enumerate((*block.obs, block.reward)):
        if array.dtype.kind != "f" or math.isfinite(np.add.reduce(array, axis=None, dtype=np.float64)):
            continue
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            name = "reward" if place == len(block.obs) else f"observation leaf {place}"
            t, row = (int(x) for x in bad[0][:2])
            t = max(0, t - max(0, stack_size(block, array) - 1))
            raise NotFiniteError(
                f"{name} of environment {block.env_ids[row]} is {array[tuple(bad[0])]} at step {t} of {when};"
                f" {kept}. Mend the environment (mission-gym check finds the step){then}"
            )
    for t, row, obs, *_ in block.finals:
        if not all(np.isfinite(leaf).all() for leaf in obs):
            raise NotFiniteError(
                f"final observation of environment {block.env_ids[row]} is not finite at step {t} of {when};"
                f" {kept}"
            )
