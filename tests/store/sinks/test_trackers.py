"""Trackers: real clients whose stores are read back, and one that can't be reached for a while."""

from __future__ import annotations

import csv
import json
import socket
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mission_gym as mg
from mission_gym.cli.main import main
from mission_gym.run.config import schema
from mission_gym.store import GROUP
from mission_gym.store.rundir import Lineage, RunDir, write_lineage
from mission_gym.store.sinks import SinkContext, check_installed, list_trackers, load_sink
from mission_gym.store.sinks import tracker as tracker_module
from mission_gym.store.sinks.tracker import RunInfo, StepRow, Tracker
from mission_gym.store.tables import MetricsLog
from timeouts import LONG_S

SMALL = {
    "n_envs": 2,
    "n_steps_per_env": 16,
    "batch_size": 32,
    "n_epochs": 1,
    "eval_freq": 0,
    "tensorboard": False,
}
TRACKERS = ("wandb", "mlflow", "trackio")


def train_and_resume(tmp_path: Path, track: str) -> tuple[RunDir, list[tuple[int, float]]]:
    """A run of two processes' work, and the steps and losses of its progress.csv.

    Both share this process and thus one W&B service, which writes its files after `finish` has returned.
    The end of a process waits for it, and so does this function.
    """
    run = mg.train(
        "CartPole-v1", progress=False, runs_dir=str(tmp_path), run_name="tracked", timesteps=96, track=track,
        vector="serial", **SMALL,
    )  # fmt: skip
    assert main(["resume", str(run.path), "--timesteps", "160"]) == 0
    if track == "wandb":
        import wandb

        wandb.teardown()
    with (run.path / "progress.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train/loss"]]
    assert len(rows) == 5
    return RunDir(run.path), [(int(row["time/total_timesteps"]), float(row["train/loss"])) for row in rows]


@pytest.fixture(autouse=True)
def patient_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the first use of a client takes longer than the end of a run has for it."""
    monkeypatch.setattr(tracker_module, "_CLOSE_S", LONG_S)


def read_wandb(path: Path) -> Iterator[dict[str, Any]]:
    """The history of an offline run: records in blocks of 32 KiB, each with checksum, length and type."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = Record.FromString(parts)
            parts = b""
            if record.WhichOneof("record_type") == "run":
                yield {"run": record.run}
            if record.WhichOneof("record_type") == "history":
                yield {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }


def test_wandb_has_the_rows_of_both_processes_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv(GROUP, "trio")
    run, losses = train_and_resume(tmp_path, "wandb")
    files = sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))
    assert len({path.stem for path in files}) == 1  # one id, two processes
    rows = [row for path in files for row in read_wandb(path)]
    assert [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row] == losses
    assert {row["run"].run_group for row in rows if "run" in row} == {"trio"}


class StoppedClock:
    """`time` for modules, which only moves while they sleep."""

    now = 1.7e9

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_wandb_resumed_in_the_same_second_gets_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that find the folder of the first process write nothing; newer ones add a suffix themselves."""
    init = pytest.importorskip("wandb.sdk.wandb_init")
    clock = StoppedClock()
    monkeypatch.setattr(init, "time", clock)
    monkeypatch.setattr("mission_gym.store.sinks.wandb.time", clock)
    monkeypatch.setattr(init._WandbInit, "set_sync_dir_suffix", lambda self, settings: None, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, losses = train_and_resume(tmp_path, "wandb")
    files = sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))
    rows = [row for path in files for row in read_wandb(path)]
    assert len(files) == 2
    assert [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row] == losses


def test_a_removed_run_leaves_nothing_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, _ = train_and_resume(tmp_path, "wandb")
    links = [path for path in run.path.rglob("*") if path.is_symlink()]
    targets = [path.resolve() for path in links if not path.resolve().is_relative_to(run.path)]
    assert main(["runs", "clean", str(run.path), "--yes"]) == 0
    assert not run.path.exists()
    assert all(target.exists() for target in targets)  # links are removed, not their targets


def test_a_file_of_the_user_in_the_folder_of_wandb_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, _ = train_and_resume(tmp_path, "wandb")
    note = run.path / "wandb" / "note.txt"
    note.write_text("mine")
    assert main(["runs", "clean", str(run.path), "--yes"]) == 0
    assert [path for path in run.path.rglob("*") if not path.is_dir()] == [note]


def test_mlflow_has_the_rows_of_both_processes_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv(GROUP, "trio")
    from mlflow.tracking import MlflowClient

    run, losses = train_and_resume(tmp_path, "mlflow")
    client = MlflowClient()
    (kept,) = client.search_runs([client.get_experiment_by_name("mission-gym").experiment_id])
    assert kept.info.run_name == run.name
    assert kept.info.status == "FINISHED"
    assert kept.data.params["env.env_id"] == "CartPole-v1"
    assert kept.data.tags["group"] == "trio"
    history = client.get_metric_history(kept.info.run_id, "train/loss")
    assert sorted((metric.step, metric.value) for metric in history) == losses


def test_mlflow_that_is_not_reached_gets_all_rows_later(
    place: SinkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real client, against a port where nobody listens, and then against its SQLite store."""
    pytest.importorskip("mlflow")
    monkeypatch.setattr(tracker_module, "_FIRST_S", 0.01)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    from mlflow.tracking import MlflowClient

    said: list[str] = []
    down, back = threading.Event(), threading.Event()

    def tell(text: str) -> None:
        said.append(text)
        (back if "again" in text else down).set()

    log = MetricsLog(place.run.metrics_jsonl)
    sink = load_sink("mlflow").open(place._replace(notify=tell), None)
    add(log, sink, 1, 2)
    assert down.wait(LONG_S)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place.run.path}/mlflow.db")
    add(log, sink, 3)
    assert back.wait(LONG_S)
    sink.close()
    assert len(said) == 2
    assert "training continues" in said[0]
    client = MlflowClient()
    (kept,) = client.search_runs([client.get_experiment_by_name("mission-gym").experiment_id])
    history = client.get_metric_history(kept.info.run_id, "train/loss")
    assert sorted((metric.step, metric.value) for metric in history) == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert kept.data.params["parent"] == "elder"


def test_trackio_has_the_rows_of_both_processes_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # which it reads when it is imported
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("trackio")
    run, losses = train_and_resume(tmp_path, "trackio")
    (database,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step, id").fetchall()
    assert {name for name, *_ in rows} == {run.name}
    found = [(step, json.loads(metrics)) for _, step, metrics in rows]
    assert [(step, row["train/loss"]) for step, row in found if "train/loss" in row] == losses


class Kept:
    """A tracker's run, in memory."""

    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.rows: list[StepRow] = []
        self.is_closed = False

    def log(self, rows: list[StepRow]) -> None:
        self.rows += rows

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def place(tmp_path: Path) -> SinkContext:
    run = RunDir.create(tmp_path, "run")
    run.config_yaml.write_text("env:\n  env_id: CartPole-v1\nsources: {env.env_id: flag}\n")
    write_lineage(run, Lineage("", parent="elder", parent_step=7))
    return SinkContext(run, "CartPole-v1", 0.0)


def add(log: MetricsLog, sink: Tracker, *steps: int) -> None:
    for step in steps:
        event = {"event": "progress", "step": step, "train/loss": step / 2, "train/std": None}
        log.append(event)
        sink.write(event)


def test_a_network_that_is_down_is_said_once_and_costs_no_row(
    place: SinkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_module, "_FIRST_S", 0.001)
    monkeypatch.setattr(tracker_module, "_LONGEST_S", 0.001)
    said: list[str] = []
    up, tried_often, back = threading.Event(), threading.Event(), threading.Event()
    tries: list[RunInfo] = []
    kept = Kept("id-1")

    def tell(text: str) -> None:
        said.append(text)
        if "again" in text:
            back.set()

    def connect(facts: RunInfo, run_id: str | None) -> Kept:
        tries.append(facts)
        if len(tries) > 5:
            tried_often.set()
        if not up.is_set():
            raise ConnectionError("no route\nto host")
        return kept

    log = MetricsLog(place.run.metrics_jsonl)
    sink = Tracker("kept", place._replace(notify=tell), connect)
    add(log, sink, 1, 2)
    assert tried_often.wait(LONG_S)
    up.set()
    assert back.wait(LONG_S)
    add(log, sink, 3)
    sink.close()
    assert kept.rows == [(1, {"train/loss": 0.5}), (2, {"train/loss": 1.0}), (3, {"train/loss": 1.5})]
    assert kept.is_closed
    assert said == [
        "kept: no route to host; training continues, and rows are sent later",
        "kept can be reached again and has all rows",
    ]
    assert tries[0].config == {"env.env_id": "CartPole-v1", "parent": "elder", "parent_step": 7}


@pytest.mark.parametrize(
    ("state", "end"), [("done", "FINISHED"), ("failed", "FAILED"), ("stopped", "KILLED")]
)
def test_mlflow_makes_one_run_however_often_it_fails_and_says_how_it_ended(
    place: SinkContext, monkeypatch: pytest.MonkeyPatch, state: str, end: str
) -> None:
    """Its calls, as a client of the same shape sees them."""
    monkeypatch.setattr(tracker_module, "_FIRST_S", 0.001)
    calls: list[tuple[str, Any]] = []
    back = threading.Event()

    class Client:
        def get_experiment_by_name(self, name: str) -> Any:
            return SimpleNamespace(experiment_id="7")

        def create_run(self, experiment: str, run_name: str) -> Any:
            calls.append(("create", run_name))
            return SimpleNamespace(info=SimpleNamespace(run_id="id-1"))

        def log_batch(self, run_id: str, **batch: Any) -> None:
            calls.append((run_id, batch))
            if len(calls) == 2:
                raise ConnectionError("no route to host")

        def set_terminated(self, run_id: str, status: str) -> None:
            calls.append((run_id, status))

    entities = SimpleNamespace(Param=lambda *each: each, Metric=lambda *each: each[:2], RunStatus=None)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=Client))
    log = MetricsLog(place.run.metrics_jsonl)
    told = place._replace(notify=lambda text: back.set() if "again" in text else None)
    sink = load_sink("mlflow").open(told, None)
    add(log, sink, 1)
    assert back.wait(LONG_S)
    place.run.write_status(state=state)
    sink.close()
    parameters = {"params": [("env.env_id", "CartPole-v1"), ("parent", "elder"), ("parent_step", "7")]}
    assert calls == [
        ("create", place.run.name), ("id-1", parameters), ("id-1", parameters),
        ("id-1", {"metrics": [("train/loss", 0.5)]}), ("id-1", end),
    ]  # fmt: skip


def test_trackio_is_told_the_group(place: SinkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []

    def init(project: str, **more: Any) -> Any:
        told.append(more)
        return SimpleNamespace(log=lambda scalars, step: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    monkeypatch.setenv(GROUP, "trio")
    log = MetricsLog(place.run.metrics_jsonl)
    sink = load_sink("trackio").open(place, None)
    add(log, sink, 1)
    sink.close()
    assert [more["group"] for more in told] == ["trio"]


def test_a_resume_goes_on_in_the_same_run_with_what_is_missing(place: SinkContext) -> None:
    first, second = Kept("id-1"), Kept("")

    def connect_again(facts: RunInfo, run_id: str | None) -> Kept:
        second.id = str(run_id)
        return second

    log = MetricsLog(place.run.metrics_jsonl)
    sink = Tracker("kept", place, lambda facts, run_id: first)
    add(log, sink, 1, 2)
    sink.close()
    position = log.position()
    log.append({"event": "progress", "step": 3, "train/loss": 9.0})  # never sent, and cut by the resume
    log.close()
    log = MetricsLog(place.run.metrics_jsonl, position)
    sink = Tracker("kept", place._replace(step=2), connect_again)
    add(log, sink, 3, 4)
    sink.close()
    assert second.id == "id-1"
    assert [step for step, _ in first.rows + second.rows] == [1, 2, 3, 4]


def test_names_are_those_of_the_table_and_a_missing_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (field,) = [field for field in schema().fields if field.path == "run.track"]
    assert field.choices == list_trackers() == TRACKERS
    assert field.type_text == "wandb|mlflow|trackio ..."
    check_installed(["metrics", "tensorboard"])
    monkeypatch.setattr("mission_gym.store.sinks.find_spec", lambda name: None)
    flags = ["--timesteps", "64", "--n-envs", "2", "--n-steps", "16", "--runs-dir", str(tmp_path / "runs")]
    assert main(["train", "toys:Identity", *flags, "--track", "wandb"]) == 2
    assert "run: pip install 'mission-gym[wandb]' [--track]" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert main(["train", "toys:Identity", *flags, "--track", "neptune"]) == 2
    assert "neptune" in capsys.readouterr().err
