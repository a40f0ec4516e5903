"""An edited config.yaml shows: a resume names the values, and a checkpoint is opened with its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mission_gym.errors import ConfigError, RunStateError
from mission_gym.run.branch import branch_run
from mission_gym.run.config import resolve
from mission_gym.run.open import open_run
from mission_gym.run.resume import resume_run
from mission_gym.run.start import start_run
from mission_gym.store import checkpoints
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.resolve import RunRef
from mission_gym.store.rundir import RunDir
from runs import drain

FLAGS = {
    "n_envs": 2, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 1, "timesteps": 64, "eval_freq": 0,
    "network_arch": "8", "tensorboard": False, "vector": "serial", "gamma": 0.98,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    with start_run(
        resolve("CartPole-v1", FLAGS | {"runs_dir": str(tmp_path)}), lambda event: None
    ) as session:
        drain(session)
    return session.run


def edit(run: RunDir, before: str, after: str) -> None:
    text = run.config_yaml.read_text()
    assert text.count(before) == 1
    run.config_yaml.write_text(text.replace(before, after))


def resume_notes(run: RunDir) -> list[str]:
    heard: list[dict[str, Any]] = []
    with resume_run(run, heard.append, timesteps=96) as session:
        drain(session)
    return list(heard[0]["notes"])


def test_a_resume_names_the_values_that_were_edited(run: RunDir) -> None:
    edit(run, "gamma: 0.98", "gamma: 0.11")
    edit(run, "seed: 0", "seed: 7")
    told = resume_notes(run)[-1]
    assert told == "the resume is statistical, not exact: ppo.gamma 0.98 -> 0.11, run.seed 0 -> 7"


@pytest.mark.parametrize(
    ("before", "after"),
    [("keep_last: 3", "keep_last: 5"), ("notes: ''", "notes: mine"), ("max_time: null", "max_time: 60")],
)
def test_what_can_not_change_a_number_may_be_edited(before: str, after: str, run: RunDir) -> None:
    edit(run, before, after)
    assert resume_notes(run)[-1] == "the resume is exact"


def test_the_config_of_a_checkpoint_can_not_be_edited(run: RunDir) -> None:
    path = list_checkpoints(run.checkpoints)[-1].path / checkpoints._STATE_JSON
    document = json.loads(path.read_text())
    assert document["config"]["ppo.gamma"] == 0.98
    path.write_text(path.read_text().replace("0.98", "0.11"))
    with pytest.raises(RunStateError, match=r"state\.json is truncated or altered"):
        load_checkpoint(path.parent)


def test_an_evaluation_and_a_branch_take_the_config_of_the_checkpoint(run: RunDir) -> None:
    edit(run, "activation: tanh", "activation: relu")
    opened = open_run(RunRef(run, None))
    assert opened.config.policy.activation == "tanh"
    said = "config.yaml has policy.activation=relu; checkpoint 64 was saved with tanh, which is used"
    assert opened.notes == (said,)
    heard: list[dict[str, Any]] = []
    with branch_run(RunRef(run, None), {"timesteps": 96}, heard.append) as session:
        assert session.config.policy.activation == "tanh"
        assert session.config.run.timesteps == 96
    plan = next(event for event in heard if event["event"] == "plan")
    assert said in plan["time/plan"]["notes"]


def test_a_config_that_leaves_values_open_is_told(run: RunDir) -> None:
    for content in ("", "null"):
        run.config_yaml.write_text(content)
        with pytest.raises(ConfigError, match=r"is auto, and a run's config has no auto values"):
            open_run(RunRef(run, None))
