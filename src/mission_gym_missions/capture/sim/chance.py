"""Random numbers of one row: a counter through splitmix64's finaliser. The counter is the whole state."""

from __future__ import annotations

import math

import numpy as np

from mission_gym.compiled import kernel
from mission_gym_missions.capture.sim.layout import Record

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@kernel
def scramble(value: np.uint64) -> np.uint64:
    """Mix 64 bits so that neighbouring counters give unrelated numbers."""
    value = (value ^ (value >> np.uint64(30))) * _FIRST
    value = (value ^ (value >> np.uint64(27))) * _SECOND
    return value ^ (value >> np.uint64(31))


@kernel
def begin_stream(game: Record) -> None:
    """Start the stream of the row's episode: a function of (seed, episode) alone."""
    seed = scramble(np.uint64(game.seed) + _STEP)
    game.random = np.int64(scramble(seed ^ (np.uint64(game.episode) * _STEP + _FIRST)))


@kernel
def draw(game: Record) -> float:
    """Return a number in [0, 1) and move the row's stream on."""
    counter = np.uint64(game.random) + _STEP
    game.random = np.int64(counter)
    return np.float64(scramble(counter) >> np.uint64(11)) * 2.0**-53


@kernel
def draw_span(game: Record, half: float) -> float:
    """Return a number in [-half, half)."""
    return (2.0 * draw(game) - 1.0) * half


@kernel
def draw_index(game: Record, count: int) -> int:
    """Return one of 0 .. count - 1."""
    return min(int(draw(game) * count), count - 1)


@kernel
def draw_in_disc(game: Record, radius: float) -> tuple[float, float]:
    """Return a point of a disc around the origin, every area as likely as any other."""
    length = radius * math.sqrt(draw(game))
    angle = 2.0 * math.pi * draw(game)
    return length * math.cos(angle), length * math.sin(angle)
