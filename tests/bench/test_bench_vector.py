"""`bench vector` on the smallest grid: every side runs, and the rows are complete."""

from __future__ import annotations

from mission_gym_bench.synthetic import Burn, measure_spins_per_us
from mission_gym_bench.vector import FULL, SHORT, VectorCase, VectorGrid, measure_vector


def test_every_side_runs() -> None:
    case, waits = (
        VectorCase(10, num_envs=2, jitter=True, reset_steps=1),
        VectorCase(0, num_envs=4, wait_ms=20),
    )
    grid = VectorGrid((case, waits), seconds=0.02, waiting_envs=2, waiting_s=0.1, starts=1, repeats=1)
    stepping, collecting, first_ready, waits_row, *waiting, memory, start = measure_vector(grid)
    assert waits_row["limit"] == 4 / 0.02
    assert list(waits_row["own"]) == ["serial", "workers", "threads"]
    for row in (stepping, waits_row):
        assert row["ratio_to_own"] == row["ours"] / max(row["own"].values())
    assert start["unit"] == "s"
    assert start["ours"] > 0
    assert list(start["peers"]) == ["gymnasium async"]
    for row in (stepping, collecting, first_ready):
        assert row["ours"] > 0
        assert row["limit"] > 0
        assert all(rate > 0 for rate in row["peers"].values())
        assert row["ratio"] == row["ours"] / max(row["peers"].values())
    assert {"gymnasium sync", "gymnasium async"} <= stepping["peers"].keys()
    assert [row["limit"] for row in waiting] == [2 / 0.02] * 2
    assert memory["unit"] == "MB PSS"


def test_the_grids_hold_what_the_docs_promise() -> None:
    assert {case.step_us for case in SHORT} == {case.step_us for case in FULL} == {0, 10, 100, 1000}
    assert any(case.slow for case in SHORT)
    assert {case.step_us > 0 for case in SHORT if case.wait_ms} == {True, False}
    assert any(case.image for case in SHORT)
    slow = VectorCase(100, num_envs=3, slow=True).factories(1.0)
    assert [factory()._spins for factory in slow] == [2000, 100, 100]


def test_burn_has_the_given_cost() -> None:
    assert measure_spins_per_us() > 0
    env = Burn(image=True)
    assert env.reset(seed=0)[0].shape == (84, 84, 4)
    assert [env.step(0)[3] for _ in range(200)].count(True) == 1
