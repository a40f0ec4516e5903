"""Estimates with 95 % intervals: means and interquartile means by bootstrap, rates by Wilson's score.

The bootstrap uses fixed random streams, so equal values give equal bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mission_gym.streams import generator

_Z = 1.959963984540054
_RESAMPLES = 2000
_BATCH = 1 << 22  # numbers at a time, because there are many pairs of runs


Values = Sequence[float]
_TRIM = 0.25  # of each end, which leaves the middle half of the values


class Interval(NamedTuple):
    """An estimate with its 95 % bounds."""

    mean: float
    low: float
    high: float


class BandPoint(NamedTuple):
    """A point of a curve over several runs, with the 95 % bounds of its mean."""

    x: float
    mean: float
    low: float
    high: float


def compute_bootstrap(values: Sequence[float]) -> Interval:
    """Return the mean with percentile bootstrap bounds."""
    array = np.asarray(values, float)
    mean = float(array.mean())
    picks = generator("bootstrap", len(array)).integers(0, len(array), (_RESAMPLES, len(array)))
    low, high = np.percentile(array[picks].mean(axis=1), [2.5, 97.5])
    # Resampled means of equal values may differ from the mean by rounding.
    return Interval(mean, min(float(low), mean), max(float(high), mean))


def compute_wilson(successes: int, trials: int) -> Interval:
    """Return a rate with Wilson's score interval; a lower bound of 80 % needs 20/20, 88/100 or 218/256."""
    rate = successes / trials
    spread = _Z**2 / trials
    center = (rate + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials))
    return Interval(rate, max(0.0, center - half), min(1.0, center + half))


def compute_iqm(values: Values) -> float:
    """Return the interquartile mean: without the lowest and the highest quarter, in whole values."""
    from scipy import stats

    return float(stats.trim_mean(np.asarray(values, float), _TRIM))


def compute_iqm_interval(strata: Sequence[Values]) -> Interval | None:
    """Return the interquartile mean of all values with stratified percentile bootstrap bounds.

    Each stratum (the seeds of one task) is resampled separately. None if no stratum has two values.
    """
    from scipy import stats

    def iqm(*samples: Any, axis: int) -> Any:
        return stats.trim_mean(np.concatenate(samples, axis=axis), _TRIM, axis=axis)

    pooled = [value for stratum in strata for value in stratum]
    return _bootstrap(strata, iqm, compute_iqm(pooled)) if pooled else None


def estimate_iqm(strata: Sequence[Values]) -> dict[str, float | None]:
    """The interquartile mean of all values as `iqm`, with its bounds as `low` and `high`; None without
    data."""
    interval = compute_iqm_interval(strata)
    pooled = [value for stratum in strata for value in stratum]
    bounds = {"low": interval and interval.low, "high": interval and interval.high}
    return {"iqm": compute_iqm(pooled) if pooled else None} | bounds


def compute_improvement(ours: Values, theirs: Values) -> Interval | None:
    """Return the probability that a value of ours is higher than one of theirs, with bootstrap bounds.

    Ties count half (Mann-Whitney's U over the number of pairs). None if neither side has two values.
    """

    def share(first: Any, second: Any, axis: int) -> Any:
        gaps = np.expand_dims(first, axis) - np.expand_dims(second, axis - 1)
        return (0.5 + 0.5 * np.sign(gaps)).mean(axis=(axis - 1, axis))

    if not ours or not theirs:
        return None
    whole = share(np.asarray(ours, float), np.asarray(theirs, float), -1)
    return _bootstrap((ours, theirs), share, float(whole))


def compute_band(curves: Sequence[Sequence[tuple[float, float]]], num_points: int = 40) -> list[BandPoint]:
    """Return the interquartile mean over curves with its interval, where all of them overlap. Empty curves
    are ignored."""
    lines = [np.asarray(curve, float) for curve in curves if curve]
    if not lines:
        return []
    first, last = max(line[0, 0] for line in lines), min(line[-1, 0] for line in lines)
    if last < first:
        return []
    grid = np.linspace(first, last, num_points) if last > first else np.array([first])
    columns = np.stack([np.interp(grid, line[:, 0], line[:, 1]) for line in lines], axis=1)
    band = []
    for x, values in zip(grid.tolist(), columns.tolist(), strict=True):
        found = compute_iqm_interval([values]) or Interval(values[0], values[0], values[0])
        band.append(BandPoint(x, *found))
    return band


def _bootstrap(samples: Sequence[Values], statistic: Callable[..., Any], estimate: float) -> Interval | None:
    from scipy import stats

    arrays = [np.asarray(values, float) for values in samples if len(values)]
    varying = [array for array in arrays if len(array) > 1]
    if not varying:
        return None

    def with_singles(*resampled: Any, axis: int) -> Any:
        """Repeat samples of one value, which SciPy refuses to resample."""
        ahead, drawn = resampled[0].shape[:-1], iter(resampled)
        return statistic(
            *(next(drawn) if len(array) > 1 else np.broadcast_to(array, (*ahead, 1)) for array in arrays),
            axis=axis,
        )

    batch = max(1, _BATCH // math.prod(map(len, arrays)))
    found = stats.bootstrap(
        varying, with_singles, axis=-1, n_resamples=_RESAMPLES, method="percentile", vectorized=True,
        random_state=generator("bootstrap", *map(len, arrays)), batch=min(_RESAMPLES, batch),
    ).confidence_interval  # fmt: skip
    # Resampled means of equal values may differ from the mean by rounding.
    return Interval(estimate, min(float(found.low), estimate), max(float(found.high), estimate))
