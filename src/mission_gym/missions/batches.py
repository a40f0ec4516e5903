"""What the batched missions share: the seeds of their rows, and infos of the rows that ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mission_gym.data import Array
from mission_gym.errors import UsageError


def to_seed(seed: int) -> int:
    """Fold any seed into the 63 bits that a row keeps."""
    return seed & ((1 << 63) - 1)


def to_seeds(seed: int | Sequence[int], num_rows: int) -> Array:
    """The seeds int64 [N] of rows: one for each, or one number s for s, s + 1, ..."""
    if isinstance(seed, int):
        seed = range(seed, seed + num_rows)
    if len(seed) != num_rows:
        raise UsageError(f"{len(seed)} seeds for {num_rows} rows; give one for each [seed]")
    return np.array([to_seed(int(one)) for one in seed])


def give(given: Array, **values: Any) -> dict[str, Any]:
    """Values by name, each with Gymnasium's mask bool [N] of the rows that gave one."""
    mask = given.copy()
    return values | {f"_{name}": mask for name in values}


def spread(given: Array, values: dict[str, Array]) -> dict[str, Any]:
    """Values [R] of the rows that gave one as [N], zero elsewhere, with the mask."""
    table = np.zeros((len(values), given.size))
    table[:, given] = list(values.values())
    return give(given, **dict(zip(values, table, strict=True)))
