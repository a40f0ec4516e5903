"""Minibatches of a block [T, S] as positions of its flat rows, t * S + s: any rows, or whole segments."""

from __future__ import annotations

import numpy as np

from mission_gym.data import Array


def draw_rows(rng: np.random.Generator, num_steps: int, num_columns: int, batch_size: int) -> Array:
    """Every row once, in any order: int64 [minibatches, batch_size]; the size divides the block."""
    return rng.permutation(num_steps * num_columns).reshape(-1, batch_size)


def draw_segments(rng: np.random.Generator, num_steps: int, num_columns: int, batch_size: int) -> Array:
    """Every column once, whole, for policies with memory: int64 [minibatches, T * C].

    A minibatch is [T, C] in the order of time, so that its first C positions are those of its columns. C is
    the largest number of columns that divides S and stays within the batch size, 1 at least.
    """
    most = max(1, batch_size // num_steps)
    width = max(size for size in range(1, min(most, num_columns) + 1) if num_columns % size == 0)
    columns = rng.permutation(num_columns).reshape(-1, 1, width)
    order: Array = columns + num_columns * np.arange(num_steps)[:, None]
    return order.reshape(len(columns), -1)
