"""What a real run says about its speed: phases that add up in every row, timelines, the verdict, alarms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mission_gym.check.devices import time_product
from mission_gym.clock import ROLES
from mission_gym.run.alarms import Alarm, AlarmWatch
from mission_gym.run.config import resolve
from mission_gym.run.session import Session
from mission_gym.run.start import start_run
from mission_gym.store.tables import MetricsLog
from runs import drain, find_metric

FLAGS = {
    "n_envs": 4, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 2, "timesteps": 2048, "eval_freq": 512,
    "eval_episodes": 2, "network_arch": "16", "tensorboard": False,
}  # fmt: skip


def train(tmp_path: Path, **flags: Any) -> tuple[Session, list[dict[str, Any]]]:
    resolved = resolve("CartPole-v1", FLAGS | {"runs_dir": str(tmp_path)} | flags)
    with start_run(resolved, lambda event: None) as session:
        drain(session)
    return session, MetricsLog.read(session.run.metrics_jsonl)


@pytest.mark.parametrize("flags", [{"vector": "serial"}, {"vector": "workers", "num_workers": 2}])
def test_phases_of_every_row_add_up(flags: dict[str, Any], tmp_path: Path) -> None:
    session, rows = train(tmp_path, **flags)
    timed = [row for row in rows if row["event"] in ("progress", "end")]
    assert len(timed) == 33
    for row in timed:
        for role, names in ROLES.items():
            total = sum(row[f"phase/{name}_s"] for name in names) + row[f"phase/{role}_idle_s"]
            assert total == pytest.approx(row["phase/wall_s"], abs=1e-5)
        assert all(value > -1e-5 for key, value in row.items() if key.startswith("phase/"))
        assert all(find_metric(key) for key in row if key.startswith(("phase/", "machine/")))
    assert sum(row["phase/wall_s"] for row in timed) <= session.rate.elapsed_s
    assert sum(row["phase/collect_cpu_s"] for row in timed) > 0
    assert timed[0]["phase/act_s"] + timed[0]["phase/env_s"] <= timed[0]["phase/collect_s"]  # no priming
    verdict = rows[-1]["time/verdict"]
    assert verdict == session.run.read_status()["verdict"]
    assert verdict["bound"]


def test_timelines_come_by_steps_and_are_bounded(tmp_path: Path) -> None:
    session, rows = train(tmp_path, n_steps_per_env=8)
    timelines = [row for row in rows if row["event"] == "timeline"]
    assert [row["step"] for row in timelines] == [*range(96, 2017, 96), 2048]  # each third of 64 updates
    last = timelines[-1]
    assert last["time/updates"] == [45, 64]
    spans = last["time/spans"]
    assert spans[0][2] == 0.0
    assert [phase for role, phase, *_ in spans if role == "learner"] == ["update"] * 20
    assert {phase for role, phase, *_ in spans if role == "main"} == {"record", "evaluate", "save"}
    assert all(start <= end for *_, start, end in spans)
    assert " timeline step=" not in session.run.log_txt.read_text()


def test_alarms_stand_in_the_row_and_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [Alarm("slow", is_timed=True)]
    monkeypatch.setattr(AlarmWatch, "see_row", lambda watch, step, row, episodes: slow if step == 128 else [])
    session, rows = train(tmp_path, timesteps=256)
    assert [row["step"] for row in rows if row.get("time/alarms") == ["slow"]] == [128]
    assert "warning step=128 message=slow" in session.run.log_txt.read_text()
    assert "slow" not in session.run.progress_csv.read_text()


def test_the_rate_of_a_product_is_a_rate() -> None:
    assert 0 < time_product("cpu", 512) < 100
