"""Minibatches take every row once; whole segments stay whole and in the order of time."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.learner.blocks import draw_columns, draw_rows


def test_rows_come_once_in_any_order() -> None:
    order = draw_rows(np.random.default_rng(0), 4, 6, 8)
    assert order.shape == (3, 8)
    assert sorted(order.ravel().tolist()) == list(range(24))
    assert (np.diff(order[0]) != 1).any()


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
