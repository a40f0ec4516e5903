"""Whole runs on a Ray cluster: those of workers here, exactly resumed elsewhere after the head was lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

import mission_gym as mg
from mission_gym.errors import ConfigError, RunStateError
from mission_gym.ray.cluster import find_cluster
from mission_gym.run.resume import resume_run
from mission_gym.store.checkpoints import load_last_good
from mission_gym.store.rundir import RunDir

HOW: dict[str, Any] = {
    "n_envs": 4,
    "num_workers": 2,
    "n_steps_per_env": 32,
    "batch_size": 64,
    "timesteps": 4 * 32 * 6,
    "eval_freq": 0,
    "checkpoint_freq": 128,
    "tune": False,
    "tensorboard": False,
    "threads": 1,
    "overlap": "off",
}


def weights_of(run: Path) -> dict[str, Any]:
    checkpoint, _ = load_last_good(RunDir(run).checkpoints)
    return {name: array.tobytes() for name, array in checkpoint.policy.items()}


def go_on(run: Path, **how: Any) -> None:
    with resume_run(RunDir(run), lambda event: None, **how) as session:
        for _ in session.updates():
            pass


def train_until(update: int, then: Callable[[], bool], runs_dir: Path) -> Path:
    """Train on a cluster of this machine; `then` says whether to leave the loop after so many updates."""
    for each in mg.iterate("CartPole-v1", vector="ray", actor_workers=1, runs_dir=str(runs_dir), **HOW):
        if each.step == update * 128 and then():
            break
    (run,) = runs_dir.iterdir()
    return run


def test_a_run_is_that_of_workers_and_goes_on_exactly_on_another_cluster(tmp_path):
    expected = mg.train("CartPole-v1", vector="workers", runs_dir=str(tmp_path / "here"), **HOW)
    run = train_until(3, lambda: True, tmp_path / "there")
    assert find_cluster() is None
    assert RunDir(run).read_status()["state"] == "stopped"
    go_on(run, ray_address="none")
    assert weights_of(run) == weights_of(Path(expected.path))
    assert find_cluster() is None


_LOSE_HEAD = """
import sys, psutil
import mission_gym as mg
how = eval(sys.argv[1])
for each in mg.iterate("CartPole-v1", vector="ray", actor_workers=1, runs_dir=sys.argv[2], **how):
    if each.step == 384:
        for process in psutil.Process().children(recursive=True):
            if process.name() in ("gcs_server", "raylet"):
                process.kill()
"""


def test_a_run_whose_head_was_lost_keeps_its_checkpoint_and_goes_on_elsewhere(tmp_path):
    # In a process of its own, since Ray may end the one that loses its cluster.
    lost = subprocess.run([sys.executable, "-c", _LOSE_HEAD, repr(HOW), str(tmp_path)], capture_output=True)
    assert lost.returncode
    (run,) = tmp_path.iterdir()
    assert load_last_good(RunDir(run).checkpoints)[0].step >= 256
    go_on(run)
    assert RunDir(run).read_status()["step"] == HOW["timesteps"]


def test_what_a_cluster_can_not_do_is_one_message(tmp_path):
    run = mg.train("CartPole-v1", vector="workers", runs_dir=str(tmp_path), **HOW)
    with pytest.raises(RunStateError, match=r"is not on a Ray cluster \(vector=workers\).*\[--ray-address\]"):
        go_on(Path(run.path), timesteps=5000, ray_address="auto")
    with pytest.raises(ConfigError, match="ray_address=auto is not used: this backend uses only this"):
        mg.train("CartPole-v1", vector="serial", ray_address="auto", runs_dir=str(tmp_path))
