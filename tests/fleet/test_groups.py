"""Groups of real trainings, through the command line and through Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mission_gym as mg
from mission_gym.cli.main import main
from mission_gym.errors import UsageError, WorkerError
from mission_gym.fleet.queue import Queue
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.files import read_json
from mission_gym.store.groups import GroupDir, list_groups
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir
from timeouts import LONG_S, wait_until

ENV_ID = "toys:Identity"
SMALL = ["--n-envs", "4", "--n-steps", "16", "--no-tensorboard", "--network-arch", "8", "--vector", "serial"]
ENDLESS = [*SMALL, "--timesteps", "10M", "--eval-freq", "0", "--no-tune"]


@pytest.fixture(autouse=True)
def own_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of the test's own, in an empty folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> GroupDir:
    """A group of three seeds, made by the command line in a folder of its own."""
    folder = tmp_path_factory.mktemp("seeds")
    args = ["train", ENV_ID, *SMALL, "--timesteps", "256", "--eval-freq", "128", "--seeds", "3,1,2"]
    environ = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "mission_gym", *args, "--json", "--run-name", "trio"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    (group,) = list_groups(folder / "runs")
    document = json.loads(done.stdout)
    assert document.items() >= read_json(group.group_json).items()
    return group


def read_weights(run: RunDir) -> dict[str, np.ndarray]:
    return load_checkpoint(list_checkpoints(run.checkpoints)[-1].path).policy


def test_seeds_are_a_group_of_runs_side_by_side(seeds: GroupDir) -> None:
    record = seeds.read()
    assert (record.name, record.kind, len(record.runs)) == ("trio", "seeds", 3)
    assert sorted(run.path for run in list_runs(seeds.path.parent)) == sorted(map(Path, record.runs))
    assert [Path(run).name.rsplit("-", 2)[0] for run in record.runs] == ["trio-s3", "trio-s1", "trio-s2"]
    assert (record.low, len(record.values)) == (None, 3), "too few for an interval"
    assert record.iqm is not None
    assert min(record.values) <= record.iqm <= max(record.values)
    assert record.best_run in record.runs
    page = (seeds.path / "report.html").read_text()
    assert "(too few for a mean)" in page
    assert '<polygon class="band' not in page
    plan = read_json(RunDir(Path(record.runs[0])).plan_json)
    assert any("of the machine's cores" in note for note in plan["notes"])


def test_a_packed_run_equals_the_same_run_alone(seeds: GroupDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISSION_GYM_CORES", "1")
    assert main(["train", ENV_ID, *SMALL, "--timesteps", "256", "--eval-freq", "128", "--seed", "1"]) == 0
    (alone,) = list_runs(Path("runs"))
    packed = read_weights(RunDir(Path(seeds.read().runs[1])))
    for name, array in read_weights(alone).items():
        np.testing.assert_array_equal(packed[name], array, err_msg=name)


def test_groups_are_compared(seeds: GroupDir, capsys: pytest.CaptureFixture[str]) -> None:
    runs_dir = seeds.path.parent
    alone = seeds.read().runs[0]
    args = ["runs", "compare", "trio", alone, "--runs-dir", str(runs_dir)]
    assert main([*args, "--json", "--csv", "all.csv", "--html", "all.html"]) == 0
    document = json.loads(capsys.readouterr().out)
    first, second = document["groups"]
    assert (first["name"], len(first["runs"]), len(second["runs"])) == (seeds.name, 3, 1)
    assert (first["iqm"], first["low"]) == (seeds.read().iqm, seeds.read().low)
    (improvement,) = document["improvement"]
    assert improvement["over"] == seeds.name
    assert (0.0 <= improvement["probability"] <= 1.0, improvement["p_value"]) == (True, None)
    assert len(first["curves"]["by_step"]) == 40
    # Of one run: three this short may have no second of training in common on a busy machine.
    assert len(second["curves"]["by_time"]) == 40
    assert "run.seed" not in document["differences"]
    assert len(Path("all.csv").read_text().splitlines()) == 5
    assert "too few seeds: a comparison needs 5 on each side" in Path("all.html").read_text()
    assert main(args) == 0
    assert "too few for a mean" in capsys.readouterr().out
    assert main(["report", "trio", "--runs-dir", str(runs_dir), "--out", "trio.html"]) == 0


def test_python_returns_a_group() -> None:
    flags: dict[str, Any] = {
        "n_envs": 4, "n_steps_per_env": 16, "timesteps": 128, "tensorboard": False, "network_arch": [8],
        "env_kwargs": {"n": 3},
    }  # fmt: skip
    group = mg.train(ENV_ID, seeds=2, progress=False, seed=5, **flags)
    assert isinstance(group, mg.Group)
    assert [run.status()["state"] for run in group.runs] == ["done", "done"]
    assert group.summary()["kind"] == "seeds"
    with pytest.raises(UsageError, match="which can't import"):
        mg.train(lambda: None, seeds=2)
    with pytest.raises(UsageError, match=r"\[argument seeds\]"):
        mg.train(ENV_ID, seeds="x")


FILE = """
defaults: {env: "toys:Identity", n_envs: 4, n_steps_per_env: 16, tensorboard: false, network_arch: [8],
           vector: serial, timesteps: 128, retries: 0}
jobs:
- {name: base}
- {name: more, branch: base@last, timesteps: 256}
- {name: broken, env: "toys:Faulty", env_kwargs: {fail: constructor}}
"""


@pytest.mark.slow
def test_a_job_file_runs_and_continues(capsys: pytest.CaptureFixture[str]) -> None:
    Path("q.yaml").write_text(FILE)
    assert main(["jobs", "check", "q.yaml"]) == 0
    assert list_groups(Path("runs")) == []
    assert main(["jobs", "run", "q.yaml"]) == 3
    (group,) = list_groups(Path("runs"))
    capsys.readouterr()
    assert main(["jobs", "status", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "base": "done", "more": "done", "broken": "failed"
    }  # fmt: skip
    assert "no licence for the simulator" in rows["broken"]["cause"]
    assert rows["more"]["step"] == 256
    assert read_json(RunDir(Path(rows["more"]["run"])).lineage_json)["parent_step"] == 128
    # Code that a file names is judged as that of a config file, not as what the user typed.
    assert main(["config", rows["base"]["run"], "--json"]) == 0
    source = json.loads(capsys.readouterr().out)["env.env_id"]["source"]
    assert source == f"flag ENV via config {os.path.abspath('q.yaml')}"
    assert main(["jobs", "logs", "broken"]) == 0
    assert "no licence" in capsys.readouterr().out
    # The same file again tries what failed; a job that was changed after it ran is refused.
    assert main(["jobs", "run", "q.yaml"]) == 3
    assert [job.attempts for job in group.read_jobs().values()] == [1, 1, 2]
    Path("q.yaml").write_text(FILE.replace("timesteps: 128", "timesteps: 64"))
    assert main(["jobs", "run", "q.yaml"]) == 2
    assert "job 'base' changed after it started" in capsys.readouterr().err
    assert len(list_groups(Path("runs"))) == 1


def is_training() -> bool:
    return any(
        group.is_running(job) for group in list_groups(Path("runs")) for job in group.read_jobs().values()
    )


@pytest.mark.slow
def test_a_detached_run_is_seen_stopped_and_taken_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", ENV_ID, *ENDLESS, "--run-name", "far", "--detach", "--json"]) == 0
    (group,) = list_groups(Path("runs"))
    assert json.loads(capsys.readouterr().out) == {
        "name": group.name, "path": str(group.path), "jobs": ["run"]
    }  # fmt: skip
    wait_until(is_training)
    assert (
        main(["jobs", "add", "--detach", "--", ENV_ID, *SMALL, "--timesteps", "64", "--run-name", "near"])
        == 0
    )
    assert main(["jobs", "stop", "far"]) == 0
    job = group.read_jobs()["run"]
    assert (job.state, job.cause) == ("stopped", "SIGTERM")
    assert job.run is not None
    assert list_checkpoints(RunDir(job.run).checkpoints)
    assert main(["jobs", "wait", "near"]) == 0
    wait_until(lambda: Queue().supervisor is None)
    assert Queue().list_groups() == []


@pytest.mark.slow
def test_ctrl_c_saves_every_run(tmp_path: Path) -> None:
    args = ["train", ENV_ID, *ENDLESS, "--seeds", "2"]
    child = subprocess.Popen([sys.executable, "-m", "mission_gym", *args], stderr=subprocess.PIPE, text=True)
    try:
        wait_until(is_training)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=LONG_S)
    finally:
        child.kill()
    assert child.returncode == 130, said
    (group,) = list_groups(Path("runs"))
    assert {job.state for job in group.read_jobs().values()} == {"stopped"}
    assert "mission-gym jobs resume" in said


def test_wrong_uses_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for args, message in (
        (["jobs"], "no command of jobs is given; use one of run, check, add"),
        (["jobs", "stauts"], "did you mean 'status'"),
        (["jobs", "stop"], "give either a job or group, or --all"),
        (["jobs", "status"], "there are no groups"),
        (["jobs", "status", "none"], "no group 'none'"),
        (["jobs", "example", "four-job"], "did you mean 'four-jobs'"),
        (["train", ENV_ID, "--json"], "--json needs --seeds"),
        (["train", ENV_ID, "--cuda-mps", "on"], "--cuda-mps needs --seeds or --detach"),
        (["train", ENV_ID, "--seeds", "2", "--cuda-mps", "yes"], "use off, on or auto [--cuda-mps]"),
        (["train", ENV_ID, "--seeds", "x"], "write 5, 1..5 or 3,7,11"),
        (["train", ENV_ID, "--seeds", "2", "--gamma", "7"], "gamma=7"),
        (["train", ENV_ID, "--seeds", "2", "--resume-or-start", "x"], "remove one"),
    ):
        assert main(args) == 2, args
        assert message in capsys.readouterr().err
    assert not list_groups(Path("runs"))


@pytest.mark.slow
def test_a_group_with_a_failed_run_raises_in_python() -> None:
    with pytest.raises(WorkerError, match=r"1 of 1 runs failed; s0: .*no licence"):
        mg.train("toys:Faulty", env_kwargs={"fail": "constructor"}, seeds=1, progress=False)
