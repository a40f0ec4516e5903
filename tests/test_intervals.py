"""Intervals with known numbers."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.intervals import (
    compute_band,
    compute_bootstrap,
    compute_improvement,
    compute_iqm,
    compute_iqm_interval,
    compute_wilson,
)


@pytest.mark.parametrize(("successes", "trials"), [(20, 20), (88, 100), (218, 256)])
def test_a_lower_bound_of_80_per_cent_needs_this_much(successes: int, trials: int) -> None:
    assert compute_wilson(successes, trials).low >= 0.8
    assert compute_wilson(successes - 1, trials).low < 0.8


def test_wilson_by_hand() -> None:
    # 5 of 10: center 1/2, half width z sqrt(1/40 + z^2/400) / (1 + z^2/10).
    interval = compute_wilson(5, 10)
    assert interval == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)
    assert compute_wilson(0, 10).low == 0.0


def test_bootstrap_covers_the_mean_and_repeats() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 200).tolist()
    interval = compute_bootstrap(values)
    assert interval.low < interval.mean < interval.high
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * 2.0 / 200**0.5, rel=0.2)
    assert compute_bootstrap(values) == interval
    assert compute_bootstrap([7.0] * 20) == (7.0, 7.0, 7.0)


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
    interval = compute_iqm_interval([[1.0, 1.0, 1.0, 1.0], [100.0, 100.0, 100.0, 100.0]])
    assert interval == (50.5, 50.5, 50.5)
    mixed = compute_iqm_interval([[1.0, 1.0, 1.0, 1.0, 100.0, 100.0, 100.0, 100.0]])
    assert mixed is not None
    assert (mixed.low, mixed.high) == (1.0, 100.0)


def test_the_interval_of_interquartile_means() -> None:
    """Of four draws the middle two are averaged: both are the least with probability 13/256, above 2.5 %."""
    interval = compute_iqm_interval([[1.0, 2.0, 3.0, 4.0]])
    assert interval is not None
    assert interval == compute_iqm_interval([[1.0, 2.0, 3.0, 4.0]])
    assert interval.mean == 2.5
    assert (interval.low, interval.high) == (1.0, 4.0)
    assert compute_iqm_interval([[3.0]]) is None
    assert compute_iqm_interval([[]]) is None
    beside_one = compute_iqm_interval([[3.0], [1.0, 5.0]])
    assert beside_one is not None
    assert (beside_one.mean, beside_one.low, beside_one.high) == pytest.approx((3.0, 5 / 3, 13 / 3))


def test_the_probability_of_improvement_counts_pairs() -> None:
    found = compute_improvement([3.0, 5.0], [1.0, 3.0, 4.0])
    assert found is not None
    assert found.mean == pytest.approx((1.5 + 3.0) / 6)  # 3 beats 1 and ties 3; 5 beats all
    assert found.low < found.mean < found.high
    assert compute_improvement([2.0, 2.0], [1.0, 1.0]) == (1.0, 1.0, 1.0)
    assert compute_improvement([2.0], [1.0]) is None
    assert compute_improvement([], [1.0, 2.0]) is None


def test_rliable_gives_the_same() -> None:
    """Its numbers of 20,000 resamplings, made by hand: it is not a dependency."""
    one = compute_iqm_interval([[1.0, 2.0, 3.0, 4.0, 10.0]])
    two = compute_iqm_interval([[1.0, 2.0, 3.0, 4.0, 10.0], [3.0, 5.0, 5.0, 9.0, 7.0]])
    improvement = compute_improvement([3.0, 5.0, 4.0, 6.0, 2.5], [1.0, 3.0, 4.0, 2.0])
    assert one == pytest.approx((3.0, 4 / 3, 8.0))
    assert two == pytest.approx((4.5, 19 / 6, 7.0), abs=0.2)
    assert improvement == pytest.approx((0.8, 0.45, 1.0))


def test_a_band_is_made_where_all_curves_are() -> None:
    curves = [[(0.0, 0.0), (10.0, 10.0)], [(5.0, 1.0), (20.0, 1.0)], []]
    band = compute_band(curves, 3)
    assert [point.x for point in band] == [5.0, 7.5, 10.0]
    assert [point.mean for point in band] == pytest.approx([3.0, 4.25, 5.5])
    assert (band[0].low, band[0].high) == (1.0, 5.0)
    assert compute_band([[(0.0, 1.0)], [(5.0, 1.0)]]) == []
    assert compute_band([[(3.0, 2.0)]]) == [(3.0, 2.0, 2.0, 2.0)]
