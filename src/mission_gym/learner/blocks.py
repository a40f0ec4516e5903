"""What every learner does with what comes in: statistics begun, blocks checked, arrays taken by prefix."""

from __future__ import annotations

import math

import numpy as np

from mission_gym.data import Array, Block, Leaves
from mission_gym.errors import NotFiniteError
from mission_gym.policy import Encoder


def prime_encoder(encoder: Encoder, obs: Leaves) -> None:
    """Start the statistics of an encoder."""
    if encoder.normalizer is not None:
        encoder.normalizer.merge(encoder.flatten(obs))


def strip(arrays: dict[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


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
            raise NotFiniteError(
                f"{name} of environment {block.env_ids[row]} is {array[tuple(bad[0])]} at step {t} of {when};"
                f" {kept}. Mend the environment (mission-gym check finds the step){then}"
            )
    for t, row, obs, _ in block.finals:
        if not all(np.isfinite(leaf).all() for leaf in obs):
            raise NotFiniteError(
                f"final observation of environment {block.env_ids[row]} is not finite at step {t} of {when};"
                f" {kept}"
            )
