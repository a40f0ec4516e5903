"""Steps of a vector that are kept and compared."""

from __future__ import annotations

import numpy as np

from mission_gym.data import StepBatch
from mission_gym.vector.workers import WorkersVec


def play(vec: WorkersVec, steps: int) -> list[StepBatch]:
    vec.reset()
    return [own(vec.step(np.arange(vec.num_envs) % 2)) for _ in range(steps)]


def own(batch: StepBatch) -> StepBatch:
    """A copy that later steps leave alone."""
    for name in ("reward", "terminated", "truncated", "valid"):
        setattr(batch, name, getattr(batch, name).copy())
    batch.obs = tuple(leaf.copy() for leaf in batch.obs)
    return batch


def assert_equal(mine: StepBatch, theirs: StepBatch) -> None:
    for name in ("env_ids", "reward", "terminated", "truncated", "valid", "ended", "mask", "final_mask"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    for name in ("obs", "final_obs"):
        for leaf, other in zip(getattr(mine, name), getattr(theirs, name), strict=True):
            np.testing.assert_array_equal(leaf, other, err_msg=name)
    assert mine.episodes == theirs.episodes
