import csv
import os
from contextlib import closing

import numpy as np
import pytest

from mission_gym.data import Episode
from mission_gym.errors import DiskError, RunStateError
from mission_gym.store.sinks.files import MonitorCsv, ProgressCsv
from mission_gym.store.tables import MetricsLog

resource = pytest.importorskip("resource")


def episode(number, outcome=None):
    return Episode(
        env_id=number % 4, number=number, seed=100 + number, ret=number / 3, length=number, outcome=outcome,
        terminated=True, metrics={},
    )  # fmt: skip


def open_metrics(folder, position=None):
    return MetricsLog(folder / "metrics.jsonl", position)


def open_progress(folder, position=None):
    return ProgressCsv(folder / "progress.csv", position)


class Monitor(MonitorCsv):
    def append(self, row, t=0.0):
        super().append(episode(int(row["step"])), t)


def open_monitor(folder, position=None):
    return Monitor(folder / "monitor.csv", position, env_id="CartPole-v1", t_start=1000.0)


every_table = pytest.mark.parametrize("open_table", [open_metrics, open_progress, open_monitor])


@every_table
def test_a_table_opened_at_a_position_equals_a_straight_one(tmp_path, open_table):
    rows = [{"step": step, **({"loss": step / 2} if step > 2 else {})} for step in range(1, 7)]
    (tmp_path / "straight").mkdir()
    (tmp_path / "resumed").mkdir()
    with closing(open_table(tmp_path / "straight")) as table:
        for row in rows:
            table.append(row)
        path = table.path
    with closing(open_table(tmp_path / "resumed")) as table:
        for row in rows[:2]:
            table.append(row)
        position = table.position()
        for row in rows[2:5]:
            table.append(row)
    with closing(open_table(tmp_path / "resumed", position)) as table:
        assert table.position() == position
        for row in rows[2:]:
            table.append(row)
        assert table.path.read_bytes() == path.read_bytes()


@every_table
def test_a_torn_last_row_is_cut_off_at_opening(tmp_path, open_table):
    with closing(open_table(tmp_path)) as table:
        table.append({"step": 1})
        table.append({"step": 2})
        whole = table.path.read_bytes()
        table.append({"step": 3})
        path = table.path
    os.truncate(path, path.stat().st_size - 2)
    with closing(open_table(tmp_path)) as table:
        assert path.read_bytes() == whole
        position = table.position()
    with closing(open_table(tmp_path, position + 5)) as table:  # rows before the checkpoint are missing
        assert path.read_bytes() == whole
        assert table.position() == position


@every_table
def test_a_full_disk_tears_no_row(tmp_path, open_table):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(open_table(tmp_path)) as table:
        table.append({"step": 1})
        whole = table.path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 1, hard))
        try:
            with pytest.raises(DiskError, match=r"can't write .*File too large"):
                table.append({"step": 22})
            assert table.path.read_bytes() == whole
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        table.append({"step": 3})
        assert table.path.read_bytes().startswith(whole)
        assert table.path.read_bytes().count(b"\n") == whole.count(b"\n") + 1


def test_metrics_rows_are_strict_json(tmp_path):
    with closing(open_metrics(tmp_path)) as log:
        log.append({"step": np.int64(1), "loss": float("nan"), "phases": {"collect": np.float32(0.5)}})
        log.append({"step": 2, "name": "a\nb"})
        assert MetricsLog.read(log.path) == [
            {"step": 1, "loss": None, "phases": {"collect": 0.5}},
            {"step": 2, "name": "a\nb"},
        ]


def test_reading_metrics_while_they_are_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert MetricsLog.read(path) == []
    path.write_text('{"step": 1}\n{"st')
    assert MetricsLog.read(path) == [{"step": 1}]
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RunStateError, match=r"metrics\.jsonl, line 2 is truncated or altered"):
        MetricsLog.read(path)


def test_progress_columns_grow_and_missing_values_are_empty(tmp_path):
    with closing(open_progress(tmp_path)) as table:
        table.append({"time/fps": 10, "time/total_timesteps": 4})
        table.append({"time/fps": 11, "train/loss": 0.5, "rollout/ep_rew_mean": float("nan")})
        assert table.position() == 2
    with closing(open_progress(tmp_path)) as table:
        table.append({"train/loss": 0.25})
        assert table.position() == 3
        rows = list(csv.reader(table.path.read_text().splitlines()))
    assert rows == [
        ["time/fps", "time/total_timesteps", "train/loss", "rollout/ep_rew_mean"],
        ["10", "4", "", ""],
        ["11", "", "0.5", ""],
        ["", "", "0.25", ""],
    ]


def test_sb3_reads_the_monitor_file(tmp_path):
    pytest.importorskip("pandas")
    from stable_baselines3.common.monitor import load_results

    with closing(MonitorCsv(tmp_path / "monitor.csv", env_id="CartPole-v1", t_start=1000.0)) as table:
        table.append(episode(3, "captured"), 1.5)
        table.append(episode(4, 'odd, "name"\nhere'), 2.5)
    with closing(MonitorCsv(tmp_path / "monitor.csv", env_id="CartPole-v1", t_start=2000.0)) as table:
        table.append(episode(5), 3.5)
    assert (tmp_path / "monitor.csv").read_text().splitlines()[:3] == [
        '#{"t_start": 1000.0, "env_id": "CartPole-v1"}',
        "r,l,t,outcome,env,seed",
        "1.0,3,1.5,captured,3,103",
    ]
    frame = load_results(str(tmp_path))
    assert list(frame["r"]) == [1.0, 1.333333, 1.666667]
    assert list(frame["l"]) == [3, 4, 5]
    assert list(frame["t"]) == [1.5, 2.5, 3.5]
    assert list(frame["outcome"][:2]) == ["captured", 'odd, "name" here']
    assert list(frame["seed"]) == [103, 104, 105]


def test_an_unwritable_table_is_a_disk_error(tmp_path):
    with pytest.raises(DiskError, match=r"can't write .*metrics\.jsonl"):
        open_metrics(tmp_path / "gone")
