"""How threads share the rows of a step: each takes a few from one counter until none is left.

Nobody waits for a thread that is late or asleep: the others take its rows. What is written before
`open_rows` is seen by whoever takes a row after it.
"""

from __future__ import annotations

from mission_gym.compiled import atomic_add, atomic_read, atomic_write, entry, kernel
from mission_gym.data import Array

TAKEN, DONE, NUM_COUNTERS = 0, 16, 32  # in cache lines of their own


@entry
def open_rows(counters: Array) -> None:
    """Offer all rows."""
    atomic_write(counters, DONE, 0)
    atomic_write(counters, TAKEN, 0)


@kernel
def take_rows(counters: Array, num_rows: int, share: int) -> int:
    """The first of `share` rows for the caller alone; `num_rows` or more when none is left."""
    first = atomic_read(counters, TAKEN)
    return int(first if first >= num_rows else atomic_add(counters, TAKEN, share))


@kernel
def report_rows(counters: Array, num_rows: int) -> None:
    """Say that rows which were taken are done."""
    atomic_add(counters, DONE, num_rows)


@entry
def wait_rows(counters: Array, num_rows: int, looks: int) -> bool:
    """Wait for the rows that others took; False when they were not done after so many looks."""
    looked = 0
    while looked < looks and atomic_read(counters, DONE) < num_rows:
        looked += 1
    return looked < looks
