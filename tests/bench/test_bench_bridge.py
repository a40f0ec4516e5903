"""`bench bridge` in a short form."""

from mission_gym_bench.bridge import BridgeGrid, measure_bridge


def test_every_case_gives_a_row_and_kills_leave_nothing() -> None:
    grid = BridgeGrid(
        cases=((100, 1), (100, 4)), sizes=(64, 4096), seconds=0.05, repeats=1, num_kills=3, between_s=0.5
    )
    one, four, *costs, kills = measure_bridge(grid)
    assert one["case"] == "bridge: 100 us per step, 1 game"
    assert four["case"] == "bridge: 100 us per step, 4 games in one message"
    assert one["ratio"] > 0
    assert [row["unit"] for row in costs] == ["us", "us", "ns"]
    assert kills["holds"]
    assert kills["ours"] > 0
