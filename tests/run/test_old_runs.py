"""Runs that an earlier version wrote still open: they load, evaluate, branch and resume.

Each config.yaml holds the sections of both algorithms, as that version stored them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mission_gym as mg
from mission_gym.cli.main import main
from mission_gym.run.open import evaluate_run, open_run
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.resolve import find_run

FIXTURES = Path(__file__).parent.parent / "fixtures"
# name -> its last step, its total, an observation
RUNS: dict[str, tuple[int, int, Any]] = {
    "ppo-stopped": (768, 2048, np.zeros(4, np.float32)),
    "dqn-stopped": (1344, 2048, np.zeros(4, np.float32)),
    "ppo-scaled-rewards": (768, 2048, np.zeros(4, np.float32)),
    "ppo-workers-done": (512, 512, np.zeros(3, np.float32)),
}


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """A copy of the old runs, since opening one may write to it."""
    return Path(shutil.copytree(FIXTURES, tmp_path / "runs"))


def last_step(name: str, runs_dir: Path) -> int:
    return list_checkpoints(find_run(name, runs_dir).run.checkpoints)[-1].step


@pytest.mark.parametrize("name", RUNS)
def test_the_policy_of_an_old_run_acts(name: str, runs_dir: Path) -> None:
    policy = mg.load(runs_dir / name)
    action, _ = policy.predict(RUNS[name][2])
    assert policy.action_space.contains(action)


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_is_evaluated_as_it_was(
    name: str, runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = sorted((runs_dir / name / "eval").glob("*-select.json"))[-1]
    before = json.loads(kept.read_text())
    step = int(kept.name.removeprefix("step_").partition("-")[0])
    opened = open_run(find_run(f"{name}@{step}", runs_dir))
    after, _ = evaluate_run(opened, before["episodes"], suite="select")
    same = ("episodes", "return_mean", "length_mean", "step")
    assert [after[key] for key in same] == pytest.approx([before[key] for key in same])
    assert main(["eval", name, "--runs-dir", str(runs_dir), "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_branches(name: str, runs_dir: Path) -> None:
    step, _, _ = RUNS[name]
    args = ["branch", name, "--runs-dir", str(runs_dir), "--run-name", "child"]
    assert main([*args, "--timesteps", str(step + 128)]) == 0
    assert find_run("child", runs_dir).run.read_status()["state"] == "done"
    assert last_step("child", runs_dir) >= step + 128


@pytest.mark.parametrize("name", ["ppo-stopped", "dqn-stopped"])
def test_an_old_run_that_was_stopped_is_resumed_to_its_end(name: str, runs_dir: Path) -> None:
    assert main(["resume", name, "--runs-dir", str(runs_dir)]) == 0
    assert last_step(name, runs_dir) == RUNS[name][1]


def test_a_run_that_learned_from_scaled_rewards_goes_on_as_a_branch_alone(
    runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "ppo-scaled-rewards"
    assert main(["resume", name, "--runs-dir", str(runs_dir)]) != 0
    assert "`mission-gym branch` takes it over with its values" in capsys.readouterr().err
    assert last_step(name, runs_dir) == 768


def test_an_old_run_that_is_done_is_resumed_with_a_new_total(
    runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, where = "ppo-workers-done", ["--runs-dir", str(runs_dir)]
    assert main(["resume", name, *where]) == 2
    assert "is finished (all steps made, 512 steps)" in capsys.readouterr().err
    assert main(["resume", name, *where, "--timesteps", "640"]) == 0
    assert last_step(name, runs_dir) == 640


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_is_listed_and_shown(
    name: str, runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--runs-dir", str(runs_dir), "--json"]
    assert main(["runs", "list", *where]) == 0
    assert name in capsys.readouterr().out
    assert main(["runs", "show", name, *where]) == 0
    assert main(["config", name, *where]) == 0
