"""Minibatches take every valid row once; chunks of columns stay whole and in the order of time."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.learner.blocks import draw_chunks, draw_rows


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


@pytest.mark.parametrize(("chunk", "num_chunks"), [(4, 4), (2, 6), (8, 3), (1, 8), (8, 6)])
def test_chunks_come_once_and_whole(chunk: int, num_chunks: int) -> None:
    num_steps, num_columns = 8, 6
    valid = np.ones((num_steps, num_columns), bool)
    order = draw_chunks(np.random.default_rng(0), valid, chunk, chunk * num_chunks)
    assert order.shape == (num_steps * num_columns // (chunk * num_chunks), chunk * num_chunks)
    assert sorted(order.ravel().tolist()) == list(range(valid.size))
    steps, columns = (each.reshape(-1, chunk, num_chunks) for each in np.divmod(order, num_columns))
    assert (columns == columns[:, :1]).all()
    assert (np.diff(steps, axis=1) == 1).all()
    assert (steps[:, 0] % chunk == 0).all()


def test_chunks_without_a_valid_row_only_fill_up_the_last_minibatch() -> None:
    valid = np.zeros((8, 6), bool)
    valid[3, 1] = valid[4:, 2] = valid[0, 5] = True
    order = draw_chunks(np.random.default_rng(0), valid, 4, 8)
    assert order.shape == (2, 8)
    assert np.count_nonzero(valid.ravel()[order]) == np.count_nonzero(valid)


def test_chunks_are_shuffled() -> None:
    valid = np.ones((4, 16), bool)
    first, second = (draw_chunks(np.random.default_rng(seed), valid, 2, 8) for seed in (0, 1))
    assert first.tolist() != second.tolist()
