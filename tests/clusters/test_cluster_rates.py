"""The arithmetic of clusters, with numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from mission_gym.ray.rates import ClusterCosts, Work, find_knee, list_sizes, predict_rate

COSTS = ClusterCosts(
    latency_s=0.001, call_s=0.0005, put_s=0.001, put_byte_s=1e-9, get_byte_s=1e-9, carry_byte_s=1e-8
)
# A segment of 1,000 steps takes two workers 5 s: 200 steps/s, and weighs 100 kB.
SLOW = Work(2, 10, 100, step_s=0.01, step_bytes=100, weights_bytes=10_000, update_s=1e-5)
FREE = ClusterCosts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_each_bound_alone():
    one = predict_rate(COSTS, SLOW, 1)
    assert one.bound == "actors"
    assert one.steps_per_s == pytest.approx(1000 / 5.001)
    # The driver: 1 ms + 10 kB for the weights, and for the actor a call and 100 kB.
    assert one.limits["driver"] == pytest.approx(1000 / (0.001 + 1e-5 + 0.0005 + 1e-4))
    # The store: 100 kB in and 10 kB out.
    assert one.limits["object store"] == pytest.approx(1000 / (110_000 * 1e-8))
    assert one.limits["learner"] == pytest.approx(100_000)


def test_actors_add_up_until_something_is_full():
    assert predict_rate(COSTS, SLOW, 100).steps_per_s == pytest.approx(100 * 1000 / 5.001)
    full = predict_rate(COSTS, SLOW, 1000)
    assert (full.bound, full.steps_per_s) == ("learner", pytest.approx(100_000))
    heavy = SLOW._replace(step_bytes=28_224, update_s=0.0)  # a small image
    assert predict_rate(COSTS, heavy, 1000).bound == "object store"
    fast = SLOW._replace(step_s=1e-6, step_bytes=10, update_s=0.0)
    assert predict_rate(COSTS, fast, 1000).bound == "driver"


def test_what_costs_nothing_bounds_nothing():
    free = predict_rate(FREE, SLOW._replace(update_s=0.0), 1000)
    assert (free.bound, free.steps_per_s) == ("actors", pytest.approx(200_000))


def test_turns_cost_both():
    alone = predict_rate(COSTS, SLOW._replace(overlaps=False), 1)
    assert alone.steps_per_s == pytest.approx(1 / (5.001 / 1000 + 1e-5))


def test_the_knee_is_where_more_actors_hardly_help():
    predictions = [predict_rate(COSTS, SLOW, number) for number in list_sizes(1000)]
    knee = find_knee(predictions)
    assert (knee.num_actors, knee.bound) == (512, "learner")
    assert list_sizes(6) == [1, 2, 4, 6]
    assert list_sizes(1) == [1]
