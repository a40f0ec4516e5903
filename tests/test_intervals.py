"""Statistics with known numbers, and the measured coverage of every interval that is printed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mission_gym.data import Array
from mission_gym.intervals import (
    MIN_SEEDS,
    MIN_VALUES,
    bound_mean,
    bound_rate,
    bound_unseen,
    compare_means,
    compute_band,
    compute_improvement,
    compute_iqm,
    compute_sign_test,
    describe_seeds,
    estimate_iqm,
    estimate_mean,
    estimate_rate,
)

REPETITIONS = 2000
FEWER = 500  # of what takes a millisecond
LEAST = 0.93
Draw = Callable[[np.random.Generator, tuple[int, int]], Array]


def _draw_peaks(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.where(rng.random(shape) < 0.7, rng.normal(1, 0.1, shape), rng.normal(0, 0.1, shape))


# Returns of episodes and seeds, each with its mean and its interquartile mean.
CASES: dict[str, tuple[Draw, float, float]] = {
    "normal": (lambda rng, shape: rng.normal(0, 1, shape), 0.0, 0.0),
    "exponential": (lambda rng, shape: rng.exponential(1, shape), 1.0, 0.7384),
    "negative exponential": (lambda rng, shape: -rng.exponential(1, shape), -1.0, -0.7384),
    "log-normal": (lambda rng, shape: rng.lognormal(0, 1, shape), math.exp(0.5), 1.0733),
    "negative log-normal": (lambda rng, shape: -rng.lognormal(0, 1, shape), -math.exp(0.5), -1.0733),
    "uniform": (lambda rng, shape: rng.random(shape), 0.5, 0.5),
    "two peaks, 70 and 30 %": (_draw_peaks, 0.7, 0.8746),
    "500, or 100 in 3 %": (lambda rng, shape: np.where(rng.random(shape) < 0.97, 500.0, 100.0), 488.0, 500.0),
    "500, or 100 in 10 %": (lambda rng, shape: np.where(rng.random(shape) < 0.9, 500.0, 100.0), 460.0, 500.0),
}


@pytest.mark.parametrize("num", [10, 20, 100])
@pytest.mark.parametrize("name", CASES)
def test_intervals_of_means_cover(name: str, num: int) -> None:
    """Of the samples that get an interval, not of those whose values are all equal."""
    draw, truth, _ = CASES[name]
    found = [estimate_mean(row) for row in draw(np.random.default_rng(0), (REPETITIONS, num))]
    covered = [each.low <= truth <= each.high for each in found if each.low is not None]
    print(f"mean of {num}, {name}: {np.mean(covered):.3f}")
    assert np.mean(covered) >= LEAST


# Almost equal returns, and a rare kind of episode that a sample may not show: its share and its return.
RARE = {
    "500, or 100 in 3 %": (0.03, 100.0),
    "500, or 100 in 10 %": (0.1, 100.0),
    "500, or 3,000 in 5 %": (0.05, 3000.0),
}


@pytest.mark.parametrize("num", [10, 20, 50, 100])
@pytest.mark.parametrize("name", RARE)
def test_intervals_of_means_cover_the_kinds_of_values_in_the_sample(name: str, num: int) -> None:
    """The mean of all episodes if the rare kind was seen, otherwise that of the others. No method knows of
    what was not seen; but it is rarer than the stated limit."""
    share, rare = RARE[name]
    rng = np.random.default_rng(0)
    is_rare = rng.random((REPETITIONS, num)) < share
    rows = np.where(is_rare, rare, 500.0) + rng.normal(0, 1, is_rare.shape)
    seen = is_rare.any(axis=1)
    truths = np.where(seen, 500.0 + share * (rare - 500.0), 500.0)
    found = [estimate_mean(row) for row in rows]
    covered = np.array([each.low <= truth <= each.high for each, truth in zip(found, truths, strict=True)])
    unseen = covered[~seen]
    print(f"mean of {num}, {name}: {covered.mean():.3f}; seen in {seen.mean():.3f}")
    assert covered.mean() >= LEAST
    assert unseen.sum() >= LEAST * len(unseen)
    if share >= bound_unseen(num, 0.05):
        assert seen.mean() >= LEAST


@pytest.mark.parametrize("num", [10, 20])
@pytest.mark.parametrize("name", [name for name in CASES if "negative" not in name and "3 %" not in name])
def test_intervals_of_interquartile_means_cover(name: str, num: int) -> None:
    draw, _, truth = CASES[name]
    found = [estimate_iqm([row]) for row in draw(np.random.default_rng(0), (FEWER, num))]
    coverage = np.mean([each.low <= truth <= each.high for each in found if each.low is not None])
    print(f"interquartile mean of {num}, {name}: {coverage:.3f}")
    assert coverage >= LEAST


@pytest.mark.slow
@pytest.mark.parametrize(("num_tasks", "num"), [(2, 10), (2, 20), (5, 10)])
@pytest.mark.parametrize("name", ["normal", "exponential", "two peaks, 70 and 30 %"])
def test_intervals_over_several_tasks_cover(name: str, num_tasks: int, num: int) -> None:
    """Each task one higher than the task before it."""
    rng, draw = np.random.default_rng(0), CASES[name][0]
    levels = np.arange(num_tasks)
    truth = compute_iqm((draw(rng, (100_000, num_tasks)) + levels).ravel())
    rows = draw(rng, (FEWER, num_tasks * num)).reshape(-1, num_tasks, num) + levels[:, None]
    coverage = np.mean([each.low <= truth <= each.high for each in map(estimate_iqm, rows)])
    print(f"interquartile mean of {num_tasks} x {num}, {name}: {coverage:.3f}")
    assert coverage >= LEAST


@pytest.mark.parametrize("num", [1, 2, 5, 10, 19, 20, 50, 100, 256])
def test_intervals_of_rates_cover(num: int) -> None:
    """Exactly: the probabilities of all counts whose interval covers the rate. The rates next to a bound are
    those of the least coverage."""
    found = [estimate_rate(count, num) for count in range(num + 1)]
    bounds = [bound + gap for each in found for bound in (each.low, each.high) for gap in (-1e-9, 1e-9)]
    rates = [0.5, 0.7, 0.9, 0.97, 0.99, 0.999, *(rate for rate in bounds if 0 < rate < 1)]
    coverage = {}
    for rate in rates:
        counts = [count for count, each in enumerate(found) if each.low <= rate <= each.high]
        coverage[rate] = sum(math.comb(num, k) * rate**k * (1 - rate) ** (num - k) for k in counts)
    print(f"rates of {num}: {[f'{coverage[rate]:.3f}' for rate in rates[:6]]}, {min(coverage.values()):.3f}")
    assert min(coverage.values()) >= 0.95 - 1e-9


@pytest.mark.parametrize("name", ["normal", "log-normal", "two peaks, 70 and 30 %", "500, or 100 in 10 %"])
def test_equal_settings_are_called_different_at_most_as_often_as_stated(name: str) -> None:
    draw, _, _ = CASES[name]
    rows = draw(np.random.default_rng(0), (FEWER, 10))
    share = np.mean([compare_means(row[:5].tolist(), row[5:].tolist()) < 0.05 for row in rows])
    print(f"5 against 5, {name}: {share:.3f}")
    assert share <= 0.06


@pytest.mark.parametrize("alpha", [0.025, 0.005])
def test_lower_bounds_of_means_are_rarely_too_high(alpha: float) -> None:
    for name, (draw, truth, _) in CASES.items():
        rows = draw(np.random.default_rng(0), (REPETITIONS, 100))
        rows = rows[(rows != rows[:, :1]).any(1)]
        assert np.mean([bound_mean(row, alpha) > truth for row in rows]) <= 1.7 * alpha + 0.003, name


def test_without_spread_or_with_few_values_there_is_no_interval() -> None:
    assert estimate_mean([7.0] * 20) == (7.0, None, None)
    assert estimate_mean(list(range(MIN_VALUES - 1))) == (4.0, None, None)
    assert estimate_iqm([list(range(MIN_VALUES - 1))]) == (4.0, None, None)
    assert estimate_iqm([[1.0] * 10, [3.0] * 10]) == (2.0, None, None)
    assert estimate_iqm([list(range(10)), list(range(9))]).low is None, "each task needs as many"
    assert estimate_iqm([[]]) is None


def test_the_interval_of_a_mean_by_hand() -> None:
    # Without skewness it is Student's: t(4.5, 0.975) = 2.6585, standard deviation 3.0277.
    interval = estimate_mean([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    half = 2.6585 * 3.0277 / 10**0.5
    assert interval == pytest.approx((5.5, 5.5 - half, 5.5 + half), abs=1e-3)
    skewed = estimate_mean([500.0] * 19 + [100.0])
    assert skewed.low < 480 - 2.093 * 89.44 / 20**0.5
    assert bound_mean([3.0] * 5, 0.025) == 3.0


@pytest.mark.parametrize(("successes", "trials"), [(20, 20), (89, 100), (218, 256)])
def test_a_lower_bound_of_80_per_cent_needs_this_much(successes: int, trials: int) -> None:
    assert estimate_rate(successes, trials).low >= 0.8
    assert estimate_rate(successes - 1, trials).low < 0.8


def test_bounds_of_rates_by_hand() -> None:
    # 5 of 10: at a rate of 0.1871, five or more of ten have a probability of 2.5 %.
    assert estimate_rate(5, 10) == pytest.approx((0.5, 0.1871, 0.8129), abs=1e-4)
    chances = [math.comb(10, k) * 0.1871**k * 0.8129 ** (10 - k) for k in range(5, 11)]
    assert sum(chances) == pytest.approx(0.025, abs=1e-4)
    assert estimate_rate(0, 10) == pytest.approx((0.0, 0.0, 1 - 0.025**0.1))
    assert bound_rate(10, 10, 0.025) == pytest.approx(0.025**0.1)
    assert bound_rate(0, 10, 0.025) == 0.0
    assert bound_unseen(100, 0.05) == pytest.approx(0.0295, abs=1e-4)  # the rule of three


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 9.0], 4.0),  # a quarter of three is no whole value: nothing is cut
        ([0.0, 1.0, 3.0, 100.0], 2.0),
        ([5.0, 1.0, 2.0, 3.0, 100.0], 10 / 3),  # one of five at each end
        ([8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 4.5),
    ],
)
def test_the_interquartile_mean_is_that_of_the_middle_half(values: list[float], expected: float) -> None:
    assert compute_iqm(values) == pytest.approx(expected)


def test_strata_are_resampled_apart() -> None:
    """Two tasks of different scale: mixed, the bounds would span both."""
    low, high = [1.0, 1.0, 1.0, 1.0, 2.0] * 2, [100.0, 100.0, 100.0, 100.0, 101.0] * 2
    apart, mixed = estimate_iqm([low, high]), estimate_iqm([low + high])
    assert apart == estimate_iqm([low, high])
    assert apart.high - apart.low < 5 < mixed.high - mixed.low


def test_seeds_as_a_document() -> None:
    found = describe_seeds([[3.0, 1.0], [8.0]])
    assert found == {"iqm": 4.0, "low": None, "high": None, "mean": 4.0, "values": [1.0, 3.0, 8.0]}
    assert describe_seeds([])["values"] == []
    many = describe_seeds([list(range(12))])
    assert many["low"] < many["iqm"] == 5.5 < many["high"]


def test_the_probability_of_improvement_counts_pairs() -> None:
    assert compute_improvement([3.0, 5.0], [1.0, 3.0, 4.0]) == pytest.approx((1.5 + 3.0) / 6)
    assert compute_improvement([], [1.0, 2.0]) is None


def test_the_permutation_test_is_exact() -> None:
    """5 against 5: of the 252 ways to deal them out, two differ as much as separate ranges."""
    low, high = [1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]
    assert compare_means(low, high) == pytest.approx(2 / 252)
    assert compare_means(low, low) == pytest.approx(1.0)
    assert compare_means(low[:4], high) is None
    assert MIN_SEEDS == 5
    assert compare_means(list(range(30)), list(range(100, 130))) < 0.001


def test_the_sign_test_counts_tasks() -> None:
    assert compute_sign_test(15, 1) == pytest.approx(34 / 2**16)
    assert compute_sign_test(0, 0) == 1.0


def test_a_band_is_made_where_all_curves_are() -> None:
    curves = [[(0.0, 0.0), (10.0, 10.0)], [(5.0, 1.0), (20.0, 1.0)], []]
    band = compute_band(curves, 3)
    assert [point.x for point in band] == [5.0, 7.5, 10.0]
    assert [point.mean for point in band] == pytest.approx([3.0, 4.25, 5.5])
    assert (band[0].low, band[0].high) == (None, None)
    assert compute_band([[(0.0, 1.0)], [(5.0, 1.0)]]) == []
    assert compute_band([[(3.0, 2.0)]]) == [(3.0, 2.0, None, None)]
    ten = compute_band([[(0.0, float(i))] for i in range(10)])
    assert ten[0].low < ten[0].mean == 4.5 < ten[0].high
