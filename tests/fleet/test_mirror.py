"""Runs that are written on another machine and copied home, with the actor's methods in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mission_gym.ray.job_proxy import RunMirror, send_run
from mission_gym.ray.node_agent import NodeAgent
from mission_gym.store.checkpoints import (
    delete_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from mission_gym.store.rundir import RunDir


@pytest.fixture
def agent() -> Iterator[NodeAgent]:
    made = NodeAgent()
    yield made
    made.close()


def save(run: RunDir, step: int, value: float = 0.0) -> Path:
    arrays = {"weights": np.full(3, value)}
    return save_checkpoint(run.checkpoints, step, policy=arrays, state=arrays, state_json={}, meta={})


def steps(run: RunDir) -> list[int]:
    return [load_checkpoint(info.path).step for info in list_checkpoints(run.checkpoints)]


def test_a_run_is_copied_with_its_checkpoints(agent: NodeAgent, tmp_path: Path) -> None:
    there, home = RunDir.create(tmp_path / "there", "r"), RunDir(tmp_path / "home" / "r")
    home.path.mkdir(parents=True)
    mirror = RunMirror(agent, str(there.path), home.path)
    there.metrics_jsonl.write_text("{}\n")
    mirror.copy(everything=False)
    assert home.status_json.exists()
    assert not home.metrics_jsonl.exists()
    first = save(there, 1)
    mirror.copy(everything=False)
    assert steps(home) == [1]
    assert home.metrics_jsonl.read_text() == "{}\n"
    save(there, 2)
    delete_checkpoint(first)
    there.metrics_jsonl.write_text("{}\n{}\n")
    mirror.copy(everything=False)
    assert steps(home) == [2]
    there.metrics_jsonl.write_text("{}\n{}\n{}\n")
    there.write_status(state="done")
    mirror.copy(everything=True)
    assert home.metrics_jsonl.read_text() == "{}\n{}\n{}\n"
    assert home.read_status()["state"] == "done"
    assert not list(home.path.rglob(".tmp-*"))


def test_a_checkpoint_that_was_replaced_is_copied_again(agent: NodeAgent, tmp_path: Path) -> None:
    there, home = RunDir.create(tmp_path / "there", "r"), RunDir(tmp_path / "home" / "r")
    mirror = RunMirror(agent, str(there.path), home.path)
    for value in (1.0, 2.0):
        save(there, 1, value)
        mirror.copy(everything=True)
        (info,) = list_checkpoints(home.checkpoints)
        assert load_checkpoint(info.path).policy["weights"][0] == value


def test_a_checkpoint_that_vanishes_during_the_copy_leaves_nothing(
    agent: NodeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, home = RunDir.create(tmp_path / "there", "r"), RunDir(tmp_path / "home" / "r")
    save(there, 1)
    read = agent.read
    monkeypatch.setattr(
        agent, "read", lambda path, *part: None if path.endswith("meta.json") else read(path, *part)
    )
    RunMirror(agent, str(there.path), home.path).copy(everything=True)
    assert steps(home) == []
    assert not list(home.path.rglob(".tmp-*"))


def test_a_run_is_sent_in_parts(agent: NodeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mission_gym.ray.job_proxy._CHUNK_BYTES", 7)
    home = RunDir.create(tmp_path / "home", "r")
    save(home, 1, 3.0)
    home.log_txt.touch()
    there = RunDir(tmp_path / "there" / "r")
    send_run(agent, home.path, str(there.path))
    assert steps(there) == [1]
    assert there.log_txt.read_bytes() == b""
    assert not (there.path / ".lock").exists()
