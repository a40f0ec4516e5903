"""How threads share the rows of a step: each takes a few from one counter until none is left."""

from __future__ import annotations

from mission_gym.compiled import atomic_add, atomic_read, atomic_write, entry, kernel
from mission_gym.data import Array


@entry
def open_rows(taken: Array) -> None:
    """Offer all rows; what was written before is seen by whoever takes one."""
    atomic_write(taken, 0, 0)


@kernel
def take_rows(taken: Array, num_rows: int, share: int) -> int:
    """The first of `share` rows for the caller alone; `num_rows` or more when none is left."""
    first = atomic_read(taken, 0)
    return int(first if first >= num_rows else atomic_add(taken, 0, share))
