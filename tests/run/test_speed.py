"""Alarms about speed and memory over invented rows: each where it is due, once, and not elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from mission_gym.run.alarms import NUM_PERIODS, AlarmWatch
from mission_gym.store.metrics import read_metrics

ROW = {
    "phase/wall_s": 6.0, "phase/main_idle_s": 5.0, "phase/collect_s": 3.0, "phase/learn_s": 2.0,
    "phase/wait_s": 0.1, "phase/collect_cpu_s": 2.8, "machine/load": 0.5, "machine/memory_bytes": 1e9,
}  # fmt: skip


def watch(rows: Iterable[dict[str, Any]], *, known: bool = True) -> list[str]:
    """The alarms of a run whose rows each have a number of steps, 1000 unless told."""
    seen, step, alarms = AlarmWatch(None, read_metrics()), 500, []
    seen.watch_speed(500, env_cpu_is_known=known)
    for row in rows:
        step += row.get("steps", 1000)
        alarms += seen.see_row(step, ROW | row)
    assert all(alarm.is_timed for alarm in alarms)
    return [alarm.message for alarm in alarms]


def test_a_steady_run_is_quiet() -> None:
    assert watch([{}] * 50) == []


def test_a_rate_that_decays_is_told_once() -> None:
    (alarm,) = watch([{"steps": 1000}] * NUM_PERIODS + [{"steps": 500}] * 30)
    assert alarm.startswith("the rate fell from 200 to 100 steps/s: check for other programs")
    assert "mission-gym runs timeline" in alarm


def test_a_short_dip_and_a_slow_start_are_no_decay() -> None:
    dip = [{"steps": 300}] * (NUM_PERIODS - 1)
    assert watch([{}] * NUM_PERIODS + dip + [{}] * 20) == []
    assert watch([{"steps": 100}] * 20 + [{}] * 20) == []
    assert watch([{}] * NUM_PERIODS + [{"steps": 700}] * 30) == []


def test_quick_rows_are_joined() -> None:
    quick = {"phase/main_idle_s": 0.5, "phase/wall_s": 0.5}
    fast, slow = [quick | {"steps": 100}], [quick | {"steps": 20}]
    assert watch(fast * 10 * NUM_PERIODS + slow * 10 * (NUM_PERIODS - 1)) == []
    assert len(watch(fast * 10 * NUM_PERIODS + slow * 10 * NUM_PERIODS)) == 1


def test_memory_that_only_grows_is_told() -> None:
    (alarm,) = watch({"machine/memory_bytes": 1e9 + 5e7 * number} for number in range(30))
    assert alarm.startswith("memory grew steadily from 1.00 to 1.55 GB in 1.2 min")
    assert "mission-gym resume" in alarm


@pytest.mark.parametrize(
    "sizes",
    [
        [1e9 + 1e6 * number for number in range(30)],  # too little
        [1e9 + 5e7 * (number % 5) for number in range(30)],  # up and down
        [None] * 30,
    ],
)
def test_other_memory_is_quiet(sizes: list[float | None]) -> None:
    assert watch({"machine/memory_bytes": size} for size in sizes) == []


def test_workers_that_wait_for_one_are_told() -> None:
    (alarm,) = watch([{"phase/wait_s": 1.8}] * 10)
    assert alarm.startswith("workers wait 60 % of collecting, on average, for the slowest one")
    assert watch([{"phase/wait_s": 1.8}, {"phase/wait_s": 1.8}, {}] * 5) == []


def test_a_learner_without_data_is_told_where_environments_wait() -> None:
    starving = {"phase/collect_s": 4.5, "phase/learn_s": 0.5, "phase/collect_cpu_s": 0.3}
    (alarm,) = watch([starving] * 10)
    assert alarm.startswith("the learner is idle 90 % of the time")
    assert watch([starving] * 10, known=False) == []
    assert watch([starving | {"phase/collect_cpu_s": 4.4}] * 10) == []  # they compute: no fault
    assert watch([starving | {"phase/collect_cpu_s": 1.0}] * 10) == [alarm]
    crowd = {"phase/collect_cpu_s": 1.0, "machine/load": 3.0}  # others have the cores
    assert watch([starving | crowd] * 10) == []


def test_an_environment_that_blocks_the_event_loop_raises_one_alarm() -> None:
    blocked = {"time/loop_blocked": 0.4, "time/loop_blocked_env": 3.0}
    (alarm,) = watch([{}, blocked, blocked])
    assert alarm.startswith(
        "environment 3 blocks the event loop: all others waited for it during 40% of collecting"
    )
    assert "use --vector threads" in alarm
    assert watch([blocked | {"time/loop_blocked": 0.01}]) == []


def test_alarms_about_speed_are_not_part_of_checkpoints() -> None:
    seen = AlarmWatch(None)
    seen.watch_speed(0, env_cpu_is_known=True)
    alarms = [alarm for step in range(1, 5) for alarm in seen.see_row(step, ROW | {"phase/wait_s": 1.8})]
    assert len(alarms) == 1
    assert seen.state()["raised"] == []
