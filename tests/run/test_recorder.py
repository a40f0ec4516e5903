"""One path for everything that is told: rows of metrics.jsonl, or the status."""

from __future__ import annotations

import csv
import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from mission_gym.errors import DiskError
from mission_gym.run.config import resolve
from mission_gym.run.resume import resume_run
from mission_gym.run.session import Session
from mission_gym.run.start import start_run
from mission_gym.store.evals import best_step, read_evals
from mission_gym.store.files import to_json
from mission_gym.store.rundir import RunDir
from mission_gym.store.sinks.files import ProgressCsv, TextLog
from mission_gym.store.tables import MetricsLog
from runs import drain

FLAGS = {
    "n_envs": 4, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 1, "timesteps": 640, "eval_freq": 320,
    "eval_episodes": 2, "network_arch": "8", "tensorboard": False, "vector": "serial",
}  # fmt: skip


def train(folder: Path) -> tuple[Session, list[dict[str, Any]]]:
    heard: list[dict[str, Any]] = []
    with start_run(resolve("CartPole-v1", FLAGS | {"runs_dir": str(folder)}), heard.append) as session:
        drain(session)
    return session, heard


def warnings_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["message"] for event in events if event["event"] == "warning"]


def test_what_is_shown_is_a_row_or_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[dict[str, Any]] = []
    write_status = RunDir.write_status

    def note(run: RunDir, *, durable: bool = True, **fields: Any) -> None:
        written.append(fields)
        write_status(run, durable=durable, **fields)

    monkeypatch.setattr(RunDir, "write_status", note)
    monkeypatch.setattr("mission_gym.run.status._STATUS_S", 0.0)
    monkeypatch.setattr("mission_gym.run.status._TICK_S", 0.0)
    session, heard = train(tmp_path)
    rows = [event for event in heard if event["event"] != "status"]
    assert json.loads(json.dumps(to_json(rows))) == MetricsLog.read(session.run.metrics_jsonl)
    statuses = [{"event": "status", **fields} for fields in written if "step" in fields]
    for status in statuses:
        status.pop("lost_rows", None), status.pop("lost_events", None)
    assert [event for event in heard if event["event"] == "status" and event in statuses] == statuses
    phases = {event["phase"] for event in heard if event["event"] == "status"}
    assert {"training", "evaluating", None} <= phases
    status = session.run.read_status()
    assert {"step", "total", "fps", "train_fps", "return_mean", "best_step"} <= status.keys()
    assert not {"phase", "now_fps", "eta_s", "lost_rows"} & status.keys()  # nothing is under way


def test_lost_rows_are_told_whatever_failed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = {MetricsLog: MetricsLog.append, ProgressCsv: ProgressCsv.append}
    refused = {MetricsLog: range(64, 129), ProgressCsv: range(128, 10_000)}

    def refuse(kind: type) -> Any:
        def act(table: Any, row: dict[str, Any]) -> None:
            if row.get("step", row.get("time/total_timesteps")) in refused[kind]:
                raise DiskError(f"can't write {table.path.name}: full")
            append[kind](table, row)

        return act

    for kind in append:
        monkeypatch.setattr(kind, "append", refuse(kind))
    session, heard = train(tmp_path)
    told = warnings_of(heard)
    assert [message.partition(":")[0] for message in told[:2]] == [
        "can't write metrics.jsonl",
        "can't write progress.csv",
    ]
    assert told[2].startswith("metrics is written again; it lacks 4 rows")  # two updates with their timelines
    assert told[3].startswith("progress lacks 11 rows")  # nine rows and two evaluations
    assert len(told) == 4
    assert session.run.read_status()["lost_rows"] == {"metrics": 4, "progress": 11}
    assert warnings_of(MetricsLog.read(session.run.metrics_jsonl)) == told
    assert [event["event"] for event in heard][-3:] == ["status", "warning", "end"]


def test_a_status_that_is_refused_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_status = RunDir.write_status

    def refuse(run: RunDir, *, durable: bool = True, **fields: Any) -> None:
        if 0 < fields.get("step", 0) < 640:
            raise DiskError("can't write status.json: full")
        write_status(run, durable=durable, **fields)

    monkeypatch.setattr(RunDir, "write_status", refuse)
    monkeypatch.setattr("mission_gym.run.status._STATUS_S", 0.0)
    session, heard = train(tmp_path)
    assert warnings_of(heard) == [
        "status not written: can't write status.json: full",
        "the status can be written again",
    ]
    assert session.run.read_status()["state"] == "done"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_listener_that_fails_does_not_end_the_run(number: int, tmp_path: Path) -> None:
    """A console whose log lies on a full disk, or whose terminal was closed."""
    heard = []

    def listen(event: dict[str, Any]) -> None:
        heard.append(event)
        raise OSError(number, os.strerror(number))

    with start_run(resolve("CartPole-v1", FLAGS | {"runs_dir": str(tmp_path)}), listen) as session:
        drain(session)
    status = session.run.read_status()
    assert status["state"] == "done"
    assert 10 < status["lost_events"] <= len(heard)
    rows = MetricsLog.read(session.run.metrics_jsonl)
    assert warnings_of(rows) == [f"progress can't be shown: {os.strerror(number)}; training continues"]


def test_a_sink_that_can_not_write_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(log: TextLog, event: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TextLog, "write", refuse)
    session, heard = train(tmp_path)
    told = warnings_of(heard)
    assert len(told) == 2
    assert told[0].endswith(
        "No space left on device; training continues, and log loses rows until it can be written"
    )
    assert told[1].startswith("log lacks ")
    status = session.run.read_status()
    assert status["state"] == "done"
    assert status["lost_rows"]["log"] > 10


def test_the_status_tells_the_end_before_the_last_word(tmp_path: Path) -> None:
    seen = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "end":
            seen.append(session.run.read_status()["state"])

    with start_run(resolve("CartPole-v1", FLAGS | {"runs_dir": str(tmp_path)}), listen) as session:
        drain(session)
    assert seen == ["done"]


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_clocks_that_are_set_leave_durations_sane(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durations use the monotonic clock, so the time of day may be set during a run."""
    shift_s, real = 0.0, time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift_s)
    with start_run(
        resolve("CartPole-v1", FLAGS | {"runs_dir": str(tmp_path)}), lambda event: None
    ) as session:
        for progress in session.updates():
            shift_s = jump_s if progress.update == 4 else shift_s
    rows = [row for row in MetricsLog.read(session.run.metrics_jsonl) if row["event"] == "progress"]
    elapsed = [row["time/time_elapsed"] for row in rows]
    assert elapsed == sorted(elapsed)
    assert elapsed[0] >= 0
    assert all(0 < row["time/fps"] < 1e7 for row in rows)
    with session.run.monitor_csv.open() as file:
        times = [float(row["t"]) for row in csv.DictReader(list(file)[1:])]
    assert times == sorted(times)
    assert session.run.read_status()["state"] == "done"


def test_evaluations_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again after each one: there may be thousands."""
    found = []

    def count(run: RunDir, *tell: Any) -> list[dict[str, Any]]:
        found.append(read_evals(run, *tell))
        return found[-1]

    monkeypatch.setattr("mission_gym.store.evals.read_evals", count)
    session, _ = train(tmp_path)
    assert [len(results) for results in found] == [0, 2]  # at the start, and for the confirmation
    assert session.run.read_status()["best_step"] == best_step(session.run)
    assert len(found[-1]) == 2


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ((), "the resume is exact"),
        (("numba", "scipy"), "the resume is exact if numba and scipy did not change"),
    ],
)
def test_a_run_without_some_versions_is_resumed(left_out: tuple[str, ...], said: str, tmp_path: Path) -> None:
    session, _ = train(tmp_path)
    plan = json.loads(session.run.plan_json.read_text())
    for name in left_out:
        del plan["versions"][name]
    session.run.plan_json.write_text(json.dumps(plan))
    heard: list[dict[str, Any]] = []
    with resume_run(session.run, heard.append, timesteps=704) as resumed:
        for _ in resumed.updates():
            pass
    assert heard[0]["notes"][-1].startswith(said)
    assert (
        len([row for row in MetricsLog.read(resumed.run.metrics_jsonl) if row["event"] == "progress"]) == 11
    )
