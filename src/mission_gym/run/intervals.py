"""95 % intervals: bootstrap for means, Wilson for rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mission_gym.streams import generator

_Z = 1.959963984540054
_RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate with its 95 % bounds."""

    mean: float
    low: float
    high: float


def compute_bootstrap(values: Sequence[float]) -> Interval:
    """The mean with percentile bootstrap bounds; equal values give equal bounds (the resampling is fixed)."""
    array = np.asarray(values, float)
    mean = float(array.mean())
    picks = generator("bootstrap", len(array)).integers(0, len(array), (_RESAMPLES, len(array)))
    low, high = np.percentile(array[picks].mean(axis=1), [2.5, 97.5])
    # Resampled means of equal values may differ from them by rounding.
    return Interval(mean, min(float(low), mean), max(float(high), mean))


def compute_wilson(successes: int, trials: int) -> Interval:
    """A rate with Wilson's score interval: the lower bound of 80 % needs 20/20, 88/100 or 218/256."""
    rate = successes / trials
    spread = _Z**2 / trials
    center = (rate + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials))
    return Interval(rate, max(0.0, center - half), min(1.0, center + half))
