"""Prioritised drawing against its formula and against a plain cumulative sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mission_gym.learner.replay_loops import EPSILON, Priorities


def make(errors: list[float], alpha: float = 0.6) -> Priorities:
    priorities = Priorities(len(errors), alpha)
    priorities.update(np.arange(len(errors)), np.array(errors, np.float32))
    return priorities


def test_frequencies_and_weights_follow_the_formula() -> None:
    errors = np.array([0.1, 0.5, 1.0, 2.0, 0.0])
    priorities = make(errors.tolist(), alpha=0.7)
    p = (errors + EPSILON) ** 0.7
    p /= p.sum()
    rng = np.random.default_rng(0)
    counts = np.zeros(5)
    for _ in range(2000):
        slots, weights = priorities.draw(rng.random(32), beta=0.5)
        np.add.at(counts, slots, 1)
        raw = (5 * p[slots]) ** -0.5
        np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-5)
    np.testing.assert_allclose(counts / counts.sum(), p, atol=0.003)


@given(
    st.lists(st.sampled_from([0.0, 1e-9, 0.3, 1.0, 7.0]), min_size=1, max_size=70),
    st.integers(1, 40),
    st.data(),
)
def test_draws_equal_those_of_a_cumulative_sum(values: list[float], num: int, data: st.DataObject) -> None:
    """One draw from each of `num` equal parts of the sum."""
    if not any(values):
        values[0] = 1.0
    priorities = Priorities(len(values), 1.0)
    priorities.load({"priorities": np.array(values), "largest_priority": np.array(1.0)})
    noise = np.array(data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=num, max_size=num)))
    slots, _ = priorities.draw(noise, 0.4)
    cumulated = np.cumsum(values)
    wanted = (np.arange(num) + noise) / num * cumulated[-1]
    expected = np.searchsorted(cumulated, wanted, side="right")
    near = np.abs(cumulated[:, None] - wanted).min(axis=0) < 1e-9 * cumulated[-1]  # rounding decides
    np.testing.assert_array_equal(slots[~near], expected[~near])
    assert all(values[slot] > 0 for slot in slots)


def test_new_transitions_get_the_largest_priority_seen_and_cleared_ones_are_never_drawn() -> None:
    priorities = Priorities(8, 1.0)
    priorities.add(np.array([0, 1]))
    assert priorities.values.tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    priorities.update(np.array([0]), np.array([5.0], np.float32))
    priorities.update(np.array([0]), np.array([0.5], np.float32))
    priorities.add(np.array([7]))
    np.testing.assert_allclose(priorities.values[[0, 1, 7]], [0.5, 1.0, 5.0], rtol=1e-5)
    priorities.clear(np.array([7, 1]))
    slots, weights = priorities.draw(np.random.default_rng(0).random(100), 1.0)
    assert set(slots.tolist()) == {0}
    assert set(weights.tolist()) == {1.0}


def test_a_saved_tree_is_the_same_tree() -> None:
    rng = np.random.default_rng(1)
    one = Priorities(1000, 0.6)
    one.add(np.arange(600))
    for _ in range(50):
        one.update(rng.integers(0, 600, 32), rng.normal(size=32).astype(np.float32))
    other = Priorities(1000, 0.6)
    other.load({name: array.copy() for name, array in one.arrays(600).items()})
    np.testing.assert_array_equal(one._tree, other._tree)
    assert one._tree[1] == pytest.approx(one.values.sum())


def test_priorities_follow_the_unit_of_errors() -> None:
    """Equal errors before and after a hundredfold unit are drawn equally often."""
    priorities = Priorities(4, 0.6)
    priorities.update(np.array([0, 1]), np.array([3.0, 3.0], np.float32))
    priorities.rescale(0.01)
    priorities.update(np.array([2, 3]), np.array([0.03, 0.03], np.float32))
    np.testing.assert_allclose(priorities.values, priorities.values[0], rtol=1e-4)
    slots, _ = priorities.draw((np.arange(400) % 20) / 20, 0.4)
    np.testing.assert_allclose(np.bincount(slots, minlength=4), 100, atol=1)
    priorities.clear(np.array([0]))
    priorities.add(np.array([0]))
    np.testing.assert_allclose(priorities.values[0], 0.03**0.6, rtol=1e-4)
