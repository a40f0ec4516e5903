"""Intervals with known numbers."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.run.intervals import compute_bootstrap, compute_wilson


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
