"""Random numbers of the simulators: functions of seed, episode and a counter, without hidden state.

64 bits (capture, placement): splitmix64's finalizer over a counter, and the counter is the whole state.
32 bits (territory): MurmurHash3's finalizer modulo 2^32, which JavaScript's Math.imul computes bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mission_gym.compiled import kernel
from mission_gym.data import Array

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

BITS = 0xFFFFFFFF
STEP32 = 0x9E3779B1


def mix64(value: Any) -> Any:
    """Mix a uint64, or an array of them, so that consecutive counters give unrelated numbers."""
    value = (value ^ (value >> np.uint64(30))) * _FIRST
    value = (value ^ (value >> np.uint64(27))) * _SECOND
    return value ^ (value >> np.uint64(31))


_mix64 = kernel(mix64)


@kernel
def begin_stream(game: Any) -> None:
    """Start the stream of a row's episode: a function of (seed, episode) alone."""
    seed = _mix64(np.uint64(game.seed) + _STEP)
    game.random = np.int64(_mix64(seed ^ (np.uint64(game.episode) * _STEP + _FIRST)))


@kernel
def draw(game: Any) -> float:
    """Return a number in [0, 1) and advance the row's stream."""
    counter = np.uint64(game.random) + _STEP
    game.random = np.int64(counter)
    return np.float64(_mix64(counter) >> np.uint64(11)) * 2.0**-53


@kernel
def draw_span(game: Any, half: float) -> float:
    """Return a number in [-half, half)."""
    return (2.0 * draw(game) - 1.0) * half


@kernel
def draw_index(game: Any, count: int) -> int:
    """Return one of 0 .. count - 1."""
    return min(int(draw(game) * count), count - 1)


@kernel
def draw_in_disc(game: Any, radius: float) -> tuple[float, float]:
    """Return a uniform point of a disc around the origin."""
    length = radius * math.sqrt(draw(game))
    angle = 2.0 * math.pi * draw(game)
    return length * math.cos(angle), length * math.sin(angle)


def draw_uniform(seeds: Array, episodes: Array, count: int) -> Array:
    """Return the first `count` numbers in [0, 1) of each stream: seeds, episodes int64 [R] -> [R, count]."""
    mixed = mix64(seeds.astype(np.uint64) + _STEP)
    stream = mix64(mixed ^ (episodes.astype(np.uint64) * _STEP + _FIRST))
    counters = stream[:, None] + _STEP * np.arange(1, count + 1, dtype=np.uint64)
    numbers: Array = (mix64(counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


@kernel
def mix32(value: int) -> int:
    """Mix 32 bits."""
    value ^= value >> 16
    value = (value * 0x85EBCA6B) & BITS
    value ^= value >> 13
    value = (value * 0xC2B2AE35) & BITS
    return value ^ (value >> 16)


@kernel
def begin_stream32(seed: int, episode: int) -> int:
    """Return the stream of an episode. seed: 63 bits."""
    low, high = seed & BITS, seed >> 32
    return mix32((mix32((mix32(low) ^ high) & BITS) + episode * STEP32) & BITS)


@kernel
def draw32(stream: int, purpose: int, counter: int) -> int:
    """Return a number from 0 to 2^32 - 1."""
    return mix32((mix32((stream + (purpose + 1) * STEP32) & BITS) + counter * STEP32) & BITS)
