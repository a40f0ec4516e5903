"""Aggregate rates by number of jobs, from steps and times."""

from __future__ import annotations

from mission_gym.fleet.schedule import WINDOW_S, JobRates, JobSteps


def run(job_rates: JobRates, begun: float, **rates: tuple[str, float]) -> float:
    """Let jobs run at these rates for a window; returns its end."""
    for second in (0.0, WINDOW_S / 2, WINDOW_S):
        steps = {key: JobSteps(variant, 1 + round(rate * second)) for key, (variant, rate) in rates.items()}
        job_rates.add(begun + second, steps)
    return begun + WINDOW_S


def test_rates_are_summed_in_units_of_each_variants_first_rate() -> None:
    rates = JobRates()
    now = run(rates, 0.0, a=("fast", 50_000.0), b=("slow", 100.0))
    assert rates.rates[False] == {2: 2.0}
    now = run(rates, now + 1, a=("fast", 40_000.0), b=("slow", 90.0), c=("slow", 80.0))
    assert rates.rates[False] == {2: 2.0, 3: 0.8 + 0.9 + 0.8}
    run(rates, now + 1, b=("slow", 150.0))
    assert rates.rates[False][1] == 1.5


def test_only_a_whole_window_of_the_same_jobs_counts() -> None:
    rates = JobRates()
    rates.add(0.0, {"a": JobSteps("v", 0)})  # starting
    rates.add(1.0, {"a": JobSteps("v", 10)})
    rates.add(WINDOW_S / 2, {"a": JobSteps("v", 100), "b": JobSteps("v", 10)})  # another has joined
    rates.add(WINDOW_S + 2, {"a": JobSteps("v", 200), "b": JobSteps("v", 100)})
    assert rates.rates[False] == {}
    rates.add(2 * WINDOW_S, {"a": JobSteps("v", 50), "b": JobSteps("v", 300)})  # resumed from a checkpoint
    assert rates.rates[False] == {}
    rates.add(3 * WINDOW_S, {"a": JobSteps("v", 150), "b": JobSteps("v", 700)})
    assert rates.rates[False] == {2: 2.0}


def test_jobs_with_and_without_mps_are_counted_separately_in_the_same_unit() -> None:
    rates = JobRates()
    for under_mps, begun, rate in ((False, 0.0, 10), (True, 100.0, 15), (None, 200.0, 90)):
        rates.add(begun, {})
        for second in (1.0, 1.0 + WINDOW_S):
            readings = {key: JobSteps("v", round(rate * second)) for key in "ab"}
            rates.add(begun + second, readings, under_mps=under_mps)
    assert rates.rates == {False: {2: 2.0}, True: {2: 3.0}}
