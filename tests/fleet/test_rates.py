"""Aggregate rates by number of jobs, from steps at times."""

from __future__ import annotations

from mission_gym.fleet.rates import WINDOW_S, Levels, Reading


def see(levels: Levels, begun: float, **rates: tuple[str, float]) -> float:
    """Let jobs run at these rates for a window; returns its end."""
    for second in (0.0, WINDOW_S / 2, WINDOW_S):
        steps = {key: Reading(variant, 1 + round(rate * second)) for key, (variant, rate) in rates.items()}
        levels.see(begun + second, steps)
    return begun + WINDOW_S


def test_a_level_is_the_sum_in_units_of_each_variants_first_rate() -> None:
    levels = Levels()
    now = see(levels, 0.0, a=("fast", 50_000.0), b=("slow", 100.0))
    assert levels.rates[False] == {2: 2.0}
    now = see(levels, now + 1, a=("fast", 40_000.0), b=("slow", 90.0), c=("slow", 80.0))
    assert levels.rates[False] == {2: 2.0, 3: 0.8 + 0.9 + 0.8}
    see(levels, now + 1, b=("slow", 150.0))
    assert levels.rates[False][1] == 1.5


def test_only_a_whole_window_of_the_same_jobs_counts() -> None:
    levels = Levels()
    levels.see(0.0, {"a": Reading("v", 0)})  # starting
    levels.see(1.0, {"a": Reading("v", 10)})
    levels.see(WINDOW_S / 2, {"a": Reading("v", 100), "b": Reading("v", 10)})  # another has joined
    levels.see(WINDOW_S + 2, {"a": Reading("v", 200), "b": Reading("v", 100)})
    assert levels.rates[False] == {}
    levels.see(2 * WINDOW_S, {"a": Reading("v", 50), "b": Reading("v", 300)})  # resumed from a checkpoint
    assert levels.rates[False] == {}
    levels.see(3 * WINDOW_S, {"a": Reading("v", 150), "b": Reading("v", 700)})
    assert levels.rates[False] == {2: 2.0}


def test_ways_to_share_a_gpu_count_apart_and_in_the_same_unit() -> None:
    levels = Levels()
    for under_mps, begun, rate in ((False, 0.0, 10), (True, 100.0, 15), (None, 200.0, 90)):
        levels.see(begun, {})
        for second in (1.0, 1.0 + WINDOW_S):
            readings = {key: Reading("v", round(rate * second)) for key in "ab"}
            levels.see(begun + second, readings, under_mps=under_mps)
    assert levels.rates == {False: {2: 2.0}, True: {2: 3.0}}
