"""Branches: what is carried over, what is explained, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mission_gym as mg
from mission_gym.config.plain_yaml import read_stored
from mission_gym.errors import ConfigError, UsageError
from mission_gym.run.branch import branch_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.resolve import find_run, list_runs
from mission_gym.store.rundir import RunDir, read_lineage, read_pins
from runs import drain

SMALL: dict[str, Any] = {
    "n_envs": 2, "n_steps_per_env": 16, "n_epochs": 2, "timesteps": 128, "eval_freq": 0, "network_arch": "8",
    "tensorboard": False, "progress": False, "seed": 1, "learning_rate_final": "none",
    "clip_range_final": "none", "run_name": "parent", "batch_size": "auto",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    mg.train("CartPole-v1", runs_dir=str(folder), **SMALL)
    return folder


def branch(runs_dir: Path, **flags: Any) -> tuple[RunDir, list[dict[str, Any]]]:
    said: list[dict[str, Any]] = []
    with branch_run(
        find_run("parent", runs_dir), {"runs_dir": str(runs_dir), **flags}, said.append
    ) as session:
        drain(session)
    return session.run, said


def test_weights_optimizer_and_counters_go_on(runs_dir: Path) -> None:
    child, said = branch(runs_dir, timesteps=192, gamma=0.9)
    parent = find_run("parent", runs_dir).run
    before = load_checkpoint(list_checkpoints(parent.checkpoints)[-1].path)
    first = load_checkpoint(list_checkpoints(child.checkpoints)[0].path)
    assert first.step == 128
    for name, array in before.policy.items():
        np.testing.assert_array_equal(first.policy[name], array)
    np.testing.assert_array_equal(
        first.state["optimizer/mean.actor.0.weight"], before.state["optimizer/mean.actor.0.weight"]
    )
    assert child.read_status()["step"] == 192
    assert child.name.startswith("parent-branch-")
    lineage = read_lineage(child)
    assert (lineage.parent, lineage.parent_step) == (parent.name, 128)
    assert read_pins(parent)[128] == [child.name]
    notes = next(event for event in said if event["event"] == "plan")["time/plan"]["notes"]
    assert any(note.startswith("ppo.gamma: 0.98 -> 0.9 (values were learned") for note in notes)


def test_what_was_chosen_for_the_parent_is_chosen_anew(runs_dir: Path) -> None:
    child, _ = branch(runs_dir, n_envs=8, timesteps=300)
    config = mg.Run(child.path)
    assert config.status()["step"] == 384  # 128 + 2 rollouts of 128
    text = child.config_yaml.read_text()
    assert "batch_size: 64" in text  # a quarter of 128 is below 64
    assert "timesteps: 384" in text


def test_sources_are_those_of_the_branch(runs_dir: Path) -> None:
    child, _ = branch(
        runs_dir, timesteps=192, gamma=0.9, run_name="child", env_kwargs={"sutton_barto_reward": 1}
    )
    stored = read_stored(child.config_yaml)
    sources = {path.partition(".")[2]: each.source for path, each in stored.items()}
    assert sources["gamma"] == "flag --gamma"
    assert sources["run_name"] == "flag --run-name"
    assert sources["env_kwargs"] == "flag --env-kwargs"
    assert {sources[name] for name in ("seed", "env_id", "n_epochs", "network_arch", "vf_coef")} == {"parent"}
    assert sources["batch_size"] == "auto"
    assert stored["run.run_name"].value == "child"


def test_an_automatic_eval_freq_has_no_note(tmp_path: Path) -> None:
    flags = {name: value for name, value in SMALL.items() if name != "eval_freq"}
    mg.train("CartPole-v1", runs_dir=str(tmp_path), **flags)
    _, said = branch(tmp_path, timesteps=192)
    notes = next(event for event in said if event["event"] == "plan")["time/plan"]["notes"]
    assert not [note for note in notes if "eval_freq" in note]
    values = [read_stored(run.config_yaml)["evaluation.eval_freq"] for run in list_runs(tmp_path)]
    assert values[0] == values[1]


def test_weights_that_do_not_fit_are_refused_by_field(runs_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy.network_arch: \(8,\) -> \(16,\)") as caught:
        branch(runs_dir, network_arch="16", timesteps=192)
    assert any(
        "actor.0.weight: [8, 4] in the checkpoint, [16, 4] now" in line for line in caught.value.problems
    )
    with pytest.raises(ConfigError, match=r"env\.env_id: CartPole-v1 -> Acrobot-v1"):
        branch(runs_dir, env_id="Acrobot-v1", timesteps=192)


def test_a_field_of_the_algorithm_that_changes_the_network_is_named(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "algo": "dqn", "timesteps": 32, "learning_starts": 16, "n_steps_per_env": 8, "batch_size": 8,
        "n_envs": 2, "network_arch": "8", "eval_freq": 0, "tensorboard": False, "progress": False,
        "run_name": "parent",
    }  # fmt: skip
    mg.train("CartPole-v1", runs_dir=str(tmp_path), **flags)
    with pytest.raises(ConfigError, match=r"dqn\.dueling: False -> True") as caught:
        branch(tmp_path, dueling=True, timesteps=64)
    assert "the environment's spaces changed" not in str(caught.value)


def test_a_total_behind_the_start_is_refused(runs_dir: Path) -> None:
    with pytest.raises(UsageError, match="timesteps=128 is not above step 128, where the branch starts"):
        branch(runs_dir)


def test_files_come_from_the_parent_unless_given_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filed.py").write_text(
        "from pathlib import Path\n"
        "from toys import Identity\n\n\n"
        "class Filed(Identity):\n"
        "    def __init__(self, path, size=1):\n"
        "        super().__init__()\n"
        "        self.length = len(Path(path).read_text())\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files.json").write_text("12345")
    flags = SMALL | {"env_kwargs": ["path=files.json"], "runs_dir": "runs", "vector": "serial"}
    flags = {key: value for key, value in flags.items() if not key.endswith("_final")}
    parent = mg.train("filed:Filed", **flags)
    (tmp_path / "files.json").write_text("12345678901")
    assert parent.evaluate(episodes=2)["length_mean"] == 5
    child, _ = branch(Path("runs"), timesteps=192, env_kwargs=["size=2"])
    assert mg.Run(child.path).evaluate(episodes=2)["length_mean"] == 5
    child, _ = branch(Path("runs"), timesteps=192, env_kwargs=[f"path={tmp_path / 'files.json'}"])
    assert mg.Run(child.path).evaluate(episodes=2)["length_mean"] == 11
    monkeypatch.chdir("/")
    assert mg.Run(parent.path).evaluate(episodes=2)["length_mean"] == 5
