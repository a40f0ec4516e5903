"""The equations without a network, with numbers worked out by hand."""

from __future__ import annotations

import numpy as np

from mission_gym.learner.advantages import ReturnScale, compute_gae


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


def test_return_scale_leaves_invalid_rows_out() -> None:
    scale = ReturnScale(1, gamma=0.9)
    valid = np.array([[True], [False], [True]])
    scale.scale(column(1, 0, 1), np.zeros((3, 1), bool), valid, np.array([0]))
    assert scale.count == 2
