"""Compiled gradient steps that several threads ("ranks") share.

Each rank learns from a fixed part of every minibatch. Gradients are added in the order of the ranks, each
rank for its part of a vector, and ranks wait for each other at a counter instead of in the interpreter. So
the bits depend on the number of ranks only.
"""

from __future__ import annotations

from typing import NamedTuple

from mission_gym.compiled import atomic_add, atomic_read, kernel, yield_core
from mission_gym.data import Array


class Vectors(NamedTuple):
    """A network's parameters, Adam's moments, and a gradient for each rank [R, P]."""

    flat: Array
    first: Array
    second: Array
    grads: Array


class Ranks(NamedTuple):
    """What ranks share: a counter of arrivals, which starts at 0, and statistics by rank [R, columns]."""

    counter: Array
    partial: Array


@kernel
def find_part(size: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Start and end of the rank's part of `size` numbers."""
    return size * rank // num_ranks, size * (rank + 1) // num_ranks


@kernel
def meet(ranks: Ranks, arrivals: int) -> int:
    """Wait for all ranks. arrivals: those counted so far; returns them with these."""
    num_ranks = len(ranks.partial)
    if num_ranks == 1:
        return arrivals
    arrivals += num_ranks
    atomic_add(ranks.counter, 0, 1)
    looks = 0
    while atomic_read(ranks.counter, 0) < arrivals:
        looks += 1
        if looks % 1024 == 0:
            yield_core()
    return arrivals


@kernel
def add_gradients(vectors: Vectors, rank: int, ranks: Ranks, arrivals: int) -> int:
    """Wait for the gradients of all ranks, then add the rank's part of them to the first one's; returns the
    arrivals."""
    num_ranks, size = vectors.grads.shape
    arrivals = meet(ranks, arrivals)
    low, high = find_part(size, rank, num_ranks)
    for other in range(1, num_ranks):
        for i in range(low, high):
            vectors.grads[0, i] += vectors.grads[other, i]
    return arrivals
