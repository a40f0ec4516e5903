"""`bench watch` in small: every row is measured."""

from mission_gym_bench.watch import WatchGrid, measure_watch


def test_every_promise_has_a_row():
    rows = measure_watch(
        WatchGrid(num_runs=3, num_rows=60, num_tags=2, idle_s=0.2, window_s=0.8, num_windows=2)
    )
    assert [row["unit"] for row in rows] == ["s"] * 3 + ["share of a core"] * 3 + ["share of its rate"]
    assert all(row["ours"] >= 0 for row in rows[:6])
    assert rows[6]["ours"] < 1
