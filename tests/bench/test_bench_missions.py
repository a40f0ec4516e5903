"""`bench territory` at a small size: every side runs."""

from __future__ import annotations

import shutil

from mission_gym_bench.missions import BRIDGE, ENGINE, PLAIN, TerritoryGrid, measure_territory


def test_a_small_grid_names_all_sides() -> None:
    grid = TerritoryGrid(((64, 2),), num_envs=8, num_steps=3, seconds=0.01, repeats=1)
    (row,) = measure_territory(grid)
    assert set(row["peers"]) == ({PLAIN, ENGINE, BRIDGE} if shutil.which("node") else {PLAIN})
    assert row["ratio"] == row["ours"] / row["peers"][PLAIN]
    assert min(row["ours"], *row["peers"].values()) > 0
