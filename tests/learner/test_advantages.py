"""The equations without a network, with numbers worked out by hand."""

from __future__ import annotations

import numpy as np

from mission_gym.learner.advantages import ReturnScale, compute_gae, compute_importance


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


def test_return_scale_carries_sums_over_blocks_and_resets_at_ends() -> None:
    scale = ReturnScale(2, gamma=0.5)
    ids, valid = np.array([0, 1]), np.ones((2, 2), bool)
    ended = np.array([[False, True], [False, False]])
    scale.scale(np.array([[1.0, 1.0], [1.0, 1.0]]), ended, valid, ids)
    np.testing.assert_allclose(scale.sums, [1.5, 1.0])
    scale.scale(np.ones((2, 2)), np.zeros((2, 2), bool), valid, ids)
    seen = np.array([1.0, 1.0, 1.5, 1.0, 1.75, 1.5, 1.875, 1.75])
    assert np.isclose(scale.var, seen.var())
    assert np.isclose(scale.mean, seen.mean())
    scaled = scale.scale(np.array([[2.0, 2.0]]), np.zeros((1, 2), bool), np.ones((1, 2), bool), ids)
    np.testing.assert_allclose(scaled, 2.0 / np.sqrt(scale.var + 1e-8))


def test_return_scale_takes_two_segments_of_one_environment_in_order() -> None:
    scale = ReturnScale(2, gamma=0.5)
    ids, valid = np.array([0, 1, 0]), np.ones((2, 3), bool)
    ended = np.array([[False, False, True], [False, False, False]])
    scale.scale(np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]), ended, valid, ids)
    np.testing.assert_allclose(scale.sums, [4.0, 3.0])
    seen = np.array([1.0, 2.0, 4.75, 1.5, 3.0, 4.0])  # 4.75 = 1.5 / 2 + 4: the first segment goes on
    assert np.isclose(scale.mean, seen.mean())
    assert np.isclose(scale.var, seen.var())


def test_return_scale_leaves_invalid_rows_out() -> None:
    scale = ReturnScale(1, gamma=0.9)
    valid = np.array([[True], [False], [True]])
    scale.scale(column(1, 0, 1), np.zeros((3, 1), bool), valid, np.array([0]))
    assert scale.count == 2
