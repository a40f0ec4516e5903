"""Jobs on Ray clusters: nodes that are lost, runs that come home, groups that are stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mission_gym.cli.main import main
from mission_gym.fleet.wait import wait_for_jobs
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.groups import GroupDir, JobRequest, list_groups
from mission_gym.store.rundir import RunDir
from mission_gym_bench.ray_nodes import ray_nodes
from queue_jobs import Crew
from timeouts import LONG_S, wait_until

pytest.importorskip("ray")

_ENV = """
import os, time
import gymnasium as gym

class Slow(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self, sign):
        self.sign, self.step_number = sign, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        self.step_number += 1
        if not os.path.exists(self.sign):
            time.sleep(0.05)
        return 0, float(action), self.step_number % 10 == 0, False, {}
"""
_AWAY = """#!{python}
import sys
from contextlib import contextmanager
from pathlib import Path
from mission_gym.ray import job_proxy

@contextmanager
def mark():
    yield Path("/nowhere/at/all"), ""

job_proxy._mark = mark
sys.exit(job_proxy.main(sys.argv[4:]))
"""
_SMALL = (
    "--n-envs=2",
    "--n-steps=16",
    "--vector=serial",
    "--network-arch=8",
    "--no-tune",
    "--no-tensorboard",
)
_SHORT = (*_SMALL, "--batch-size=32", "--timesteps=2048", "--eval-freq=0", "--checkpoint-freq=128")


def has_saved(group: GroupDir, name: str) -> bool:
    """Whether a job runs, and has a checkpoint behind that of its start."""
    job = group.read_jobs()[name]
    return (
        job.run is not None
        and group.is_running(job)
        and any(info.step for info in list_checkpoints(RunDir(job.run).checkpoints))
    )


def test_a_lost_node_costs_what_had_not_come_home(crew: Crew, tmp_path: Path) -> None:
    """Two nodes that don't see the runs folder, three jobs; one node goes while its job runs."""
    (tmp_path / "slow.py").write_text(_ENV)
    python = tmp_path / "away"
    python.write_text(_AWAY.format(python=sys.executable))
    python.chmod(0o755)
    go = tmp_path / "go"

    def request(name: str, address: str) -> JobRequest:
        places = (f"--runs-dir={crew.runs_dir}", f"--run-name=g-{name}")
        words = ("slow:Slow", *_SHORT, "--env-kwargs", f"sign={go}", *places)
        more: dict[str, Any] = {"arguments": words, "folder": str(tmp_path), "python": str(python)}
        return crew.request(name, cluster=address, **more)

    with ray_nodes(0, 1, 1) as cluster:
        group = crew.group(*(request(name, cluster.address) for name in "abc"))
        crew.tick_until(lambda: has_saved(group, "a") and has_saved(group, "b"))
        jobs = group.read_jobs()
        assert jobs["c"].state == "queued"
        assert {jobs["a"].node, jobs["b"].node} == {node.node_id for node in cluster.worker_nodes}
        (lost,) = (node for node in cluster.worker_nodes if node.node_id == jobs["a"].node)
        cluster.remove_node(lost, allow_graceful=False)
        crew.tick_until(lambda: group.read_jobs()["a"].cause != "")
        go.touch()
        for name in "bac":
            crew.tick_until(lambda name=name: group.read_jobs()[name].has_ended)
        ended = crew.finish(group)
        crew.supervisor.close()
    assert {name: (job.state, job.attempts) for name, job in ended.items()} == {
        "a": ("done", 2), "b": ("done", 1), "c": ("done", 1),
    }  # fmt: skip
    assert "a failed and is retried: its node left the cluster, or its process there was killed" in crew.said
    log = group.log("a").read_text()
    assert log.count("does not share the runs folder") == 2
    assert "resumes at step" in log
    runs = [RunDir(Path(run)) for run in group.read().runs]
    assert [run.path.parent for run in runs] == [crew.runs_dir] * 3
    assert [run.path for run in runs] == [job.run for job in ended.values()]
    assert [run.read_status()["step"] for run in runs] == [2048] * 3
    assert all(run.metrics_jsonl.exists() and run.config_yaml.exists() for run in runs)
    assert ended["a"].run == jobs["a"].run  # it went on, with what had come home


def test_jobs_on_a_cluster_of_our_own_are_stopped_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nodes share the folder. Whoever looks after the queue is asked by another process."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    words = {"n_envs": 2, "n_steps": 16, "vector": "serial", "network_arch": 8, "batch_size": 32}
    lines = [f"{name}: {value}" for name, value in words.items()]
    more = "env: CartPole-v1, timesteps: 10M, eval_freq: 0, checkpoint_freq: 3200, tensorboard: false"
    Path("ours.yaml").write_text(f"defaults: {{{', '.join(lines)}, {more}}}\njobs: [{{name: a}}]\n")
    command = [sys.executable, "-m", "mission_gym", "jobs", "run", "ours.yaml", "--on", "ray"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as driver:
        wait_until(lambda: list_groups(tmp_path / "runs") or driver.poll() is not None)
        (group,) = list_groups(tmp_path / "runs")
        wait_until(lambda: has_saved(group, "a") or driver.poll() is not None)
        assert main(["jobs", "stop", "a"]) == 0
        said, _ = driver.communicate(timeout=LONG_S)
    job = group.read_jobs()["a"]
    assert (job.state, job.cause, job.attempts) == ("stopped", "SIGTERM", 1), said
    assert job.run is not None
    assert RunDir(job.run).read_status()["pid"] != os.getpid()
    capsys.readouterr()
    assert main(["jobs", "logs", "a"]) == 0
    assert "which shares the runs folder: the run is written there" in capsys.readouterr().out
    assert "1 jobs on a Ray cluster" in said


def test_an_address_without_a_cluster_is_refused_before_a_group_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("ours.yaml").write_text("jobs: [{name: a, env: CartPole-v1}]\n")
    assert main(["jobs", "run", "ours.yaml", "--on", "ray", "--ray-address", "127.0.0.1:9"]) == 2
    assert "no Ray cluster answers at 127.0.0.1:9" in capsys.readouterr().err
    assert main(["jobs", "run", "ours.yaml", "--ray-address", "auto"]) == 2
    assert "ray_address needs --on ray" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_queued_jobs_of_a_cluster_that_is_gone_fail_with_the_cause(crew: Crew) -> None:
    group = crew.group(crew.request("a", cluster="127.0.0.1:9"), crew.request("b"))
    jobs = wait_for_jobs(crew.queue, group, ["a", "b"])
    assert jobs["a"].state == "failed"
    assert "no Ray cluster answers at 127.0.0.1:9" in jobs["a"].cause
    assert jobs["b"].state == "done"
