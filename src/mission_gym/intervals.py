"""Statistics of episodes, seeds and tasks: estimates with 95 % intervals, lower bounds, and tests.

Every interval has a measured coverage, which tests/test_intervals.py repeats and docs/evaluation.md lists. No
interval is given below `MIN_VALUES` values, or if all values are equal: nothing is known about the spread.
Bootstraps use fixed random streams, so equal values give equal bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mission_gym.streams import generator

MIN_VALUES = (
    10  # of an interval: with fewer, skewed and two-peaked values are covered less than 93 % of times
)
MIN_SEEDS = 5  # of each side of a comparison: 5 against 5 can reach p = 0.008, 3 against 3 only 0.1
LEVEL = 0.05  # a smaller p value is called a difference
_TAIL = LEVEL / 2
_RESAMPLES = 2000
_PERMUTATIONS = 20_000  # all of them up to 8 against 8 values, else a random sample
_BATCH = 1 << 22  # numbers at a time
_TRIM = 0.25  # of each end, which leaves the middle half of the values

Values = Sequence[float] | npt.NDArray[Any]


class Interval(NamedTuple):
    """An estimate with its 95 % bounds; None if no interval can be given."""

    mean: float
    low: float | None
    high: float | None


class Rate(NamedTuple):
    """A rate with its 95 % bounds."""

    mean: float
    low: float
    high: float


class BandPoint(NamedTuple):
    """A point of a curve over several runs, with the 95 % bounds of its mean, if there are enough runs."""

    x: float
    mean: float
    low: float | None
    high: float | None


def estimate_mean(values: Values) -> Interval:
    """Return the mean with its interval: Student's t, widened for few and for skewed values.

    It covers the mean of the kinds of values in the sample. A rarer kind may be unseen: see `bound_unseen`.
    """
    array = np.asarray(values, float)
    if len(array) < MIN_VALUES or _are_equal(array):
        return Interval(float(array.mean()), None, None)
    return Interval(float(array.mean()), bound_mean(array, _TAIL), -bound_mean(-array, _TAIL))


def bound_mean(values: Values, alpha: float) -> float:
    """Return a lower bound of the mean that is too high in a share `alpha` of samples.

    The lower of Student's bound and Hall's (1992), whose cubic transformation corrects for skewness: the
    first is too high if most values are near the maximum and a few are far below. Student's quantile has half
    of the degrees of freedom, because the spread and skewness of few values understate those of a long tail.
    """
    from scipy import special

    array = np.asarray(values, float)
    if _are_equal(array):
        return float(array[0])
    mean, std, num = float(array.mean()), float(array.std(ddof=1)), len(array)
    t = float(special.stdtrit((num - 1) / 2, 1.0 - alpha)) / math.sqrt(num)
    unbiased = num**2 / ((num - 1) * max(num - 2, 1))
    skew = unbiased * float(((array - mean) ** 3).mean()) / std**3
    corrected = t if abs(skew) < 1e-6 else 3.0 / skew * (np.cbrt(1.0 + skew * (t - skew / (6 * num))) - 1.0)
    return mean - std * max(t, float(corrected))


def bound_rate(successes: int, trials: int, alpha: float) -> float:
    """Return Clopper's and Pearson's exact lower bound of a rate, too high in at most a share `alpha`."""
    from scipy import special

    return float(special.betaincinv(successes, trials - successes + 1, alpha)) if successes else 0.0


def bound_unseen(trials: int, alpha: float) -> float:
    """Return the largest rate of an event that `trials` trials miss with a probability of `alpha`."""
    return float(1.0 - alpha ** (1.0 / trials))


def estimate_rate(successes: int, trials: int) -> Rate:
    """Return a rate with Clopper's and Pearson's exact interval, which covers every rate for every number of
    trials. Wilson's covers a rate just above 0 or below 1 in 84 % of samples."""
    high = 1.0 - bound_rate(trials - successes, trials, _TAIL)
    return Rate(successes / trials, bound_rate(successes, trials, _TAIL), high)


def compute_iqm(values: Values) -> float:
    """Return the interquartile mean: without the lowest and the highest quarter, in whole values."""
    return float(_trim_mean(np.asarray(values, float)))


def estimate_iqm(strata: Sequence[Values]) -> Interval | None:
    """Return the interquartile mean of all values with stratified bootstrap bounds; None without values.

    Each stratum (the seeds of one task) is resampled separately, and needs `MIN_VALUES` values: few of them
    understate its spread. The percentiles are those of Hesterberg's (2015) expanded interval, because the
    plain ones are too narrow for few values.
    """
    from scipy import special

    arrays = [np.asarray(stratum, float) for stratum in strata if len(stratum)]
    if not arrays:
        return None
    pooled = np.concatenate(arrays)
    least, iqm = min(map(len, arrays)), compute_iqm(pooled.tolist())
    if least < MIN_VALUES or all(map(_are_equal, arrays)):
        return Interval(iqm, None, None)
    rng = generator("bootstrap", *map(len, arrays))
    picks = [array[rng.integers(0, len(array), (_RESAMPLES, len(array)))] for array in arrays]
    resampled = _trim_mean(np.concatenate(picks, axis=1))
    quantile = special.stdtrit(len(pooled) - len(arrays), 1.0 - _TAIL)
    tail = float(special.ndtr(-math.sqrt(least / (least - 1)) * quantile))
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    # Resampled means of equal values may differ from the mean by rounding.
    return Interval(iqm, min(float(low), iqm), max(float(high), iqm))


def describe_seeds(strata: Sequence[Values]) -> dict[str, Any]:
    """The results of seeds as a document: `iqm`, `mean` and `values`, with the bounds of the interquartile
    mean as `low` and `high`; None for what can't be given."""
    pooled = [float(value) for stratum in strata for value in stratum]
    found = estimate_iqm(strata)
    return {
        "iqm": found and found.mean,
        "low": found and found.low,
        "high": found and found.high,
        "mean": float(np.mean(pooled)) if pooled else None,
        "values": sorted(pooled),
    }


def compute_improvement(ours: Values, theirs: Values) -> float | None:
    """Return the share of pairs in which ours is higher; ties count half. None without values."""
    if not len(ours) or not len(theirs):
        return None
    gaps = np.asarray(ours, float)[:, None] - np.asarray(theirs, float)
    return float((0.5 + 0.5 * np.sign(gaps)).mean())


def compare_means(ours: Values, theirs: Values) -> float | None:
    """Return the two-sided p value of a permutation test of equal means; None if a side has fewer than
    `MIN_SEEDS` values.

    It is exact up to 8 against 8 values: the share of all ways to deal them out that differ as much.
    """
    if min(len(ours), len(theirs)) < MIN_SEEDS:
        return None
    from scipy import stats

    def difference(first: Any, second: Any, axis: int) -> Any:
        return first.mean(axis=axis) - second.mean(axis=axis)

    sides = (np.asarray(ours, float), np.asarray(theirs, float))
    found = stats.permutation_test(
        sides, difference, vectorized=True, n_resamples=_PERMUTATIONS, random_state=generator("permutations"),
        batch=max(1, _BATCH // (len(ours) + len(theirs))),
    )  # fmt: skip
    return min(1.0, float(found.pvalue))


def estimate_excess(groups: Sequence[Values]) -> float | None:
    """Return by how much the highest mean of several groups exceeds its true value on average if all of them
    are equal, which is the worst case; None if no group has two values. Blom's approximation of the highest
    of normal values."""
    from scipy import stats

    known = [np.asarray(group, float) for group in groups if len(group) > 1]
    if not known:
        return None
    standard_error = math.sqrt(float(np.mean([array.var(ddof=1) / len(array) for array in known])))
    return standard_error * float(stats.norm.ppf((len(groups) - 0.375) / (len(groups) + 0.25)))


def compute_sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p value of a sign test over tasks; ties are left out."""
    from scipy import stats

    return float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def compute_band(curves: Sequence[Sequence[tuple[float, float]]], num_points: int = 40) -> list[BandPoint]:
    """Return the mean over curves where all of them overlap; from `MIN_VALUES` curves on, the interquartile
    mean with its interval. Empty curves are ignored."""
    lines = [np.asarray(curve, float) for curve in curves if curve]
    if not lines:
        return []
    first, last = max(line[0, 0] for line in lines), min(line[-1, 0] for line in lines)
    if last < first:
        return []
    grid = np.linspace(first, last, num_points) if last > first else np.array([first])
    columns = np.stack([np.interp(grid, line[:, 0], line[:, 1]) for line in lines], axis=1)
    estimate = estimate_mean if len(lines) < MIN_VALUES else lambda values: estimate_iqm([values])
    return [BandPoint(x, *(estimate(values) or ())) for x, values in zip(grid.tolist(), columns, strict=True)]


def _trim_mean(array: npt.NDArray[Any]) -> Any:
    """The interquartile means along the last axis."""
    num = array.shape[-1]
    cut = int(_TRIM * num)
    return np.sort(array)[..., cut : num - cut].mean(axis=-1)


def _are_equal(array: Any) -> bool:
    return bool((array == array[0]).all())
