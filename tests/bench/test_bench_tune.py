"""`bench tune` on one toy, for a moment."""

from mission_gym_bench.tune import TuneCase, TuneGrid, measure_tune


def test_a_plan_is_compared_with_a_grid() -> None:
    case = TuneCase("toy", "toys:Identity", flags={"n_epochs": 1, "network_arch": "8"})
    (row,) = measure_tune(TuneGrid((case,), budget_s=2.0, repeats=1, seconds=0.01))
    assert row["case"] == "tune: toy"
    assert {"case", "ours", "peers", "ratio"} <= row.keys()
    assert row["ratio"] == row["ours"] / row["peers"]["best of the grid"] <= 1.0
    assert "chosen" in row["grid"]
    assert any("32 environments" in name for name in row["grid"])
    assert row["predicted"] > 0
    assert row["memory_measured_mb"] > 100
