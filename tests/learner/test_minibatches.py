"""Minibatches take every valid row once; whole segments stay whole and in the order of time."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.learner.blocks import draw_columns, draw_rows


def test_rows_come_once_in_any_order() -> None:
    order = draw_rows(np.random.default_rng(0), np.ones((4, 6), bool), 8)
    assert order.shape == (3, 8)
    assert sorted(order.ravel().tolist()) == list(range(24))
    assert (np.diff(order[0]) != 1).any()
    np.testing.assert_array_equal(order.ravel(), np.random.default_rng(0).permutation(24))


@pytest.mark.parametrize("alive", [0.0, 0.05, 0.2, 0.9])
def test_every_minibatch_but_the_last_is_all_valid(alive: float) -> None:
    rng = np.random.default_rng(0)
    valid = rng.random((128, 16)) < alive
    order = draw_rows(rng, valid, 64)
    num_valid = np.count_nonzero(valid)
    assert order.shape == (max(1, -(-num_valid // 64)), 64)
    is_valid = valid.ravel()[order]
    assert is_valid[:-1].all()
    assert len(set(order.ravel().tolist())) == order.size
    assert np.count_nonzero(is_valid) == num_valid


@pytest.mark.parametrize(("batch_size", "width"), [(8, 2), (15, 3), (4, 1), (1, 1), (24, 6), (100, 6)])
def test_segments_come_once_and_whole(batch_size: int, width: int) -> None:
    num_steps, num_columns = 4, 6
    order = draw_columns(np.random.default_rng(0), num_steps, num_columns, batch_size)
    assert order.shape == (num_columns // width, num_steps * width)
    assert sorted(order.ravel().tolist()) == list(range(24))
    for minibatch in order.reshape(-1, num_steps, width):
        columns = minibatch[0]
        np.testing.assert_array_equal(minibatch, columns + num_columns * np.arange(num_steps)[:, None])


def test_segments_are_shuffled() -> None:
    first, second = (draw_columns(np.random.default_rng(seed), 2, 16, 8) for seed in (0, 1))
    assert first.tolist() != second.tolist()
