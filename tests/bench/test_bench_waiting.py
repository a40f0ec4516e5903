"""`bench waiting` on the smallest grid: every row is complete."""

from __future__ import annotations

from dataclasses import replace

from mission_gym_bench.overlap import OverlapGrid
from mission_gym_bench.waiting import WaitingGrid, measure_waiting

TINY = OverlapGrid(
    n_envs=4, n_steps=4, wait_s=0.001, num_updates=1, repeats=1,
    env="mission_gym_bench.synthetic:AwaitedBurn", vector="aio",
)  # fmt: skip


def test_every_row_is_there() -> None:
    grid = WaitingGrid(
        sizes=(2, 4), wait_s=0.001, seconds=0.05, repeats=1, crawlers=4, processes=2, overlaps=(TINY,)
    )
    grid = replace(grid, crawlers=4, processes=2, plan_s=0.5, by_hand=4, planned=grid.planned[1:])
    *sizes, bare, memory, steps, share, overlap, plan = measure_waiting(grid)
    assert [row["limit"] for row in sizes] == [2000.0, 2000.0, 4000.0, 4000.0]
    assert all(row["ours"] > 0 and row["cores"] >= 0 for row in sizes)
    assert bare["ratio"] == bare["ours"] / bare["peers"]["bare asyncio"]
    assert memory["unit"] == "MB PSS"
    for row in (steps, share):
        assert row["peers"]["sb3"] is None or row["ratio"] > 0
    assert (overlap["vector"], overlap["target"]) == ("aio", 1.15)
    assert overlap["learner_busy"] > 0
    assert plan["peers"].keys() == {"4 threads by hand"}
    assert "predicted" in plan["chosen"]
