"""A block of numbers that mean nothing, for timing."""

from __future__ import annotations

import numpy as np

from mission_gym.data import Block, EnvSpec
from mission_gym.rollout.blocks import make_block


def make_noise_block(spec: EnvSpec, num_steps: int, num_rows: int) -> Block:
    """A full block [num_steps, num_rows] of noise."""
    rng = np.random.default_rng(0)
    block = make_block(spec, num_steps, num_rows)
    for leaf in block.obs:
        if leaf.dtype.kind == "f":
            leaf[:] = rng.standard_normal(leaf.shape, np.float32)
    if block.mask is not None:
        block.mask[:] = True
    block.reward[:] = rng.standard_normal(block.reward.shape, np.float32)
    block.valid[:] = True
    block.filled[:] = num_steps
    return block
