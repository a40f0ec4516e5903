"""The equations without a network, with numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mission_gym.learner.advantages import ValueScale, compute_gae, compute_importance


def column(*values: float) -> np.ndarray:
    return np.array(values, float)[:, None]


def test_gae_by_hand() -> None:
    # gamma = lambda = 1/2: A_2 = 1 + 4/2 - 2 = 1; A_1 = 1 + 2/2 - 1 + 1/4 = 5/4; A_0 = 1 + 1/2 - 0 + 5/16.
    advantage, returns = compute_gae(
        column(1, 1, 1), column(0, 1, 2), column(1, 2, 4), np.zeros((3, 1), bool), gamma=0.5, lam=0.5
    )
    np.testing.assert_allclose(advantage[:, 0], [1.8125, 1.25, 1.0])
    np.testing.assert_allclose(returns[:, 0], [1.8125, 2.25, 3.0])


def test_the_trace_is_cut_at_an_end() -> None:
    ended = np.array([[False], [True], [False]])
    advantage, _ = compute_gae(column(1, 1, 100), column(0, 0, 0), column(0, 0, 0), ended, gamma=1.0, lam=1.0)
    np.testing.assert_allclose(advantage[:, 0], [2.0, 1.0, 100.0])


def test_importance_is_the_ratio_up_to_one_and_exactly_one_without_lag() -> None:
    prox = np.log(np.array([[0.2, 0.2, 0.2], [0.9, 0.9, 0.9]], np.float32))
    mu = np.log(np.array([[0.8, 0.8, 0.1], [0.3, 0.3, 0.3]], np.float32))
    importance = compute_importance(prox, mu, np.array([1, 0, 2]))
    assert importance is not None
    assert importance.dtype == np.float32
    np.testing.assert_allclose(importance, [[0.25, 1.0, 1.0], [1.0, 1.0, 1.0]], rtol=1e-6)
    assert (importance[:, 1] == 1.0).all()
    assert compute_importance(prox, mu, np.zeros(3, np.int64)) is None


def test_traces_of_a_lagging_segment_by_hand() -> None:
    # gamma = lambda = 1/2, rho = (1/2, 1/4, 1/2); delta = (3/2, 1, 1).
    # A_2 = 1; A_1 = 1 + 1/4 1/2 A_2 = 9/8; A_0 = 3/2 + 1/4 1/4 A_1 = 201/128; G_t = V_t + rho_t A_t.
    importance = column(0.5, 0.25, 0.5).astype(np.float32)
    advantage, returns = compute_gae(
        column(1, 1, 1), column(0, 1, 2), column(1, 2, 4), np.zeros((3, 1), bool), 0.5, 0.5, importance
    )
    np.testing.assert_allclose(advantage[:, 0], [201 / 128, 9 / 8, 1.0])
    np.testing.assert_allclose(returns[:, 0], [201 / 256, 1 + 9 / 32, 2.5])


def test_an_importance_of_one_changes_no_bit_of_the_traces() -> None:
    rng = np.random.default_rng(0)
    reward, value, next_value = rng.normal(size=(3, 9, 4))
    ended = rng.random((9, 4)) < 0.2
    plain = compute_gae(reward, value, next_value, ended, 0.99, 0.95)
    ones = compute_gae(reward, value, next_value, ended, 0.99, 0.95, np.ones((9, 4), np.float32))
    for one, other in zip(plain, ones, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_scale_of_values_by_hand() -> None:
    scale = ValueScale()
    assert scale.denormalize(np.array([7.0], np.float32)).tolist() == [0.0]  # nothing is known yet
    assert scale.merge(np.array([1.0, 3.0])) == (1.0, 0.0)  # no value is kept where all were 0
    assert (scale.mean, scale.std) == (2.0, 1.0)
    # The weights of both blocks are 0.9 and 1, of 1.9: mean (0.9 2 + 12) / 1.9, and the mean of squares.
    mean = (0.9 * 2.0 + 12.0) / 1.9
    var = (0.9 * 5.0 + 145.0) / 1.9 - mean**2
    factor, shift = scale.merge(np.array([11.0, 13.0]))
    np.testing.assert_allclose([scale.mean, scale.var], [mean, var])
    np.testing.assert_allclose([factor, shift], [1.0 / np.sqrt(var), 0.0])
    output = np.array([0.5, -1.0])  # the level moved with the mean, the difference stayed
    np.testing.assert_allclose(scale.denormalize(factor * output + shift), mean + 1.0 * output)
    np.testing.assert_allclose(scale.normalize(scale.denormalize(output)), output)


def test_the_level_of_a_critic_that_was_fitted_without_a_scale_stays() -> None:
    scale, output = ValueScale(mean=0.0, var=4.0), np.array([30.0, 31.0])
    before = scale.denormalize(output)
    factor, shift = scale.merge(np.array([50.0, 70.0]))
    assert (scale.mean, scale.std) == (60.0, 10.0)
    np.testing.assert_allclose(scale.denormalize(factor * output + shift), before)


def test_targets_that_are_nearly_equal_are_not_blown_up() -> None:
    scale = ValueScale()
    scale.merge(np.array([160.99, 161.01]))
    assert scale.std == pytest.approx(0.161)


def test_a_block_without_valid_targets_moves_nothing() -> None:
    scale = ValueScale()
    scale.merge(np.array([1.0, 3.0]))
    assert scale.merge(np.empty(0)) == (1.0, 0.0)
    assert (scale.mean, scale.std) == (2.0, 1.0)


@pytest.mark.parametrize("tiny", [3e-304, 1e-160, 1e-31])
def test_targets_whose_squares_vanish_are_zeros(tiny: float) -> None:
    scale = ValueScale()
    assert scale.merge(np.array([0.0, tiny])) == (1.0, 0.0)
    assert (scale.std, scale.unit) == (0.0, 1.0)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), min_size=1, max_size=30))
def test_targets_keep_a_bounded_square_whatever_came_before(blocks: list[list[float]]) -> None:
    scale = ValueScale()
    for block in blocks:
        scale.merge(np.array(block))
        assert np.square(scale.normalize(np.array(block))).mean() <= 10.0 * (1 + 1e-6)
