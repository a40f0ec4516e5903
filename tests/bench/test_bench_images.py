"""`bench images` at a small size: every side runs."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.env.wrappers import FrameStack
from mission_gym_bench.images import ImageCase, ImageGrid, measure_images
from mission_gym_bench.synthetic import Frames


@pytest.mark.slow
def test_a_small_grid_names_all_sides() -> None:
    pytest.importorskip("stable_baselines3")
    cases = (ImageCase("84 x 84", num_envs=2), ImageCase("territory 64 x 64", num_envs=2))
    grid = ImageGrid(
        cases, cases[:1], num_steps=2, batch_size=4, num_epochs=1, seconds=0.01, repeats=1, weighed=(4, 8)
    )
    *contests, memory = measure_images(grid)
    vectors = {"sb3 dummy", "sb3 subproc"}
    assert [set(row["peers"]) for row in contests[:2]] == [vectors, vectors]
    for row in contests:
        assert row["ratio"] == row["ours"] / max(row["peers"].values())
        assert min(row["ours"], *row["peers"].values()) > 0
    assert [row["case"].split(", ")[0] for row in contests[2:]] == ["collecting with a CNN", "PPO end to end"]
    assert 84 * 84 < memory["peers"]["predicted"] < 4 * 84 * 84  # three times a frame, and each is there once


def test_both_sides_see_the_same_frames() -> None:
    ours, theirs = FrameStack(Frames(), 4), Frames(channel=True)
    assert np.array_equal(ours.reset()[0][-1], theirs.reset()[0][..., 0])
    for _ in range(5):
        assert np.array_equal(ours.step(0)[0][-1], theirs.step(0)[0][..., 0])
