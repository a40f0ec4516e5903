"""The sbatch file of the docs, under a stub that warns, takes the machine away and requeues."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mission_gym.cli.main import main
from mission_gym.run import start
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.resolve import list_runs
from mission_gym.store.tables import MetricsLog
from timeouts import LONG_S

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"
SMALL = (
    "toys:Identity --n-envs 4 --n-steps 16 --no-tensorboard --eval-freq 0 --vector serial --no-tune"
    " --timesteps 2M"
)


def make_tool(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.slow
def test_the_sbatch_file_goes_on_after_a_requeue(tmp_path: Path) -> None:
    found = re.search(r"^```bash seeds\.sbatch\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    script = tmp_path / "seeds.sbatch"
    script.write_text(found[1].replace("CartPole-v1 --timesteps 50M", SMALL))
    tools = tmp_path / "tools"
    tools.mkdir()
    make_tool(tools, "srun", 'exec "$@"')
    make_tool(tools, "scontrol", f'echo "$@" >> {tmp_path}/requeues')
    make_tool(tools, "mission-gym", f'exec {sys.executable} -m mission_gym "$@"')
    environ = os.environ | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "77"}
    environ["PATH"] = f"{tools}{os.pathsep}{environ['PATH']}"
    steps = []
    for warning in (signal.SIGUSR1, signal.SIGUSR2):
        job = subprocess.Popen(["bash", str(script)], cwd=tmp_path, env=environ)
        begun, before = time.monotonic(), steps[-1] if steps else 0
        while not (runs := list_runs(tmp_path / "runs")) or not (
            (status := runs[0].read_status()).get("state") == "running" and status.get("step", 0) > before
        ):
            assert job.poll() is None
            assert time.monotonic() - begun < LONG_S
            time.sleep(0.05)
        os.kill(runs[0].read_status()["pid"], warning)
        assert job.wait(LONG_S) == 130
        status = runs[0].read_status()
        assert (status["state"], status["cause"]) == ("stopped", warning.name)
        steps.append(status["step"])
    assert (tmp_path / "requeues").read_text() == "requeue 77\n" * 2
    (run,) = list_runs(tmp_path / "runs")
    assert run.name.startswith("cartpole-s3-")
    resumes = [row for row in MetricsLog.read(run.metrics_jsonl) if row["event"] == "resume"]
    assert [row["step"] for row in resumes] == steps[:1]
    assert "the resume is exact" in resumes[0]["notes"]


def test_a_run_that_is_done_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["train", "toys:Identity", "--n-envs", "4", "--n-steps", "16", "--no-tensorboard"]
    args += ["--timesteps", "64", "--resume-or-start", "mine"]
    assert main(args) == 0
    (run,) = list_runs(tmp_path / "runs")
    assert run.name.startswith("mine-")
    assert main(args) == 0
    assert f"run {run.name} is done; there is nothing to do" in capsys.readouterr().err
    assert len(list_runs(tmp_path / "runs")) == 1
    assert main([*args, "--run-name", "other"]) == 2


def test_a_name_goes_on_to_a_larger_total_and_says_what_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["train", "toys:Identity", "--n-envs", "4", "--n-steps", "16", "--no-tensorboard"]
    args += ["--resume-or-start", "mine", "--timesteps"]
    assert main([*args, "64"]) == 0
    assert main([*args, "100", "--gamma", "0.5"]) == 0
    said = capsys.readouterr().err
    assert "continues with its own values, without ppo.gamma=0.5 (it has 0.99)\n" in said
    (run,) = list_runs(tmp_path / "runs")
    assert run.read_status()["step"] >= 100
    assert main([*args, "100"]) == 0
    assert "is done; there is nothing to do" in capsys.readouterr().err


def test_a_warning_before_the_first_update_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begin = start.start_run

    def warned(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return begin(*args)

    monkeypatch.setattr(start, "start_run", warned)
    args = ["--n-envs", "4", "--n-steps", "16", "--no-tensorboard", "--timesteps", "2M", "--eval-freq", "0"]
    args += ["--no-tune"]
    assert main(["train", "toys:Identity", *args]) == 130
    (run,) = list_runs(tmp_path / "runs")
    status = run.read_status()
    assert (status["state"], status["cause"]) == ("stopped", "SIGUSR1")
    assert list_checkpoints(run.checkpoints)
