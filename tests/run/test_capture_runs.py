"""The capture mission as a run: its scenario files belong to the run, its baselines play in batches."""

import shutil

import pytest

import mission_gym as mg
from mission_gym.cli.main import main
from mission_gym.errors import ConfigError
from mission_gym.run.baselines import run_baselines
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym_missions import CAPTURE_ID
from mission_gym_missions.capture.scenario import SHIPPED

SMALL = {
    "n_envs": 16, "n_steps_per_env": 8, "timesteps": 256, "batch_size": 128, "n_epochs": 1,
    "network_arch": "8", "eval_freq": 128, "eval_episodes": 4, "tensorboard": False, "progress": False,
}  # fmt: skip


def test_an_own_scenario_is_read_from_the_run(tmp_path):
    own = tmp_path / "own"
    shutil.copytree(SHIPPED, own)
    run = mg.train(CAPTURE_ID, runs_dir=str(tmp_path / "runs"), env_kwargs=[f"config_dir={own}"], **SMALL)
    before = run.evaluate(8)
    for path in own.iterdir():
        path.write_text("nonsense: 1\n")
    assert run.evaluate(8) == before
    checkpoint = list_checkpoints(run.path / "checkpoints")[0].path
    assert main(["eval", str(checkpoint), "--episodes", "4"]) == 0
    shutil.rmtree(own)
    assert main(["branch", str(run.path), "--timesteps", "512", "--runs-dir", str(tmp_path / "runs")]) == 0


def test_the_shipped_scenario_belongs_to_the_run_too(tmp_path):
    run = mg.train(CAPTURE_ID, runs_dir=str(tmp_path), env_kwargs=["level=easy"], **SMALL)
    copy = run.path / "env" / SHIPPED.name
    assert {path.name for path in copy.iterdir()} == {path.name for path in SHIPPED.iterdir()}
    (copy / "easy.yaml").write_text("nonsense: 1\n")
    with pytest.raises(ConfigError, match=r"unknown key .nonsense. .*levels/easy.yaml, line 1"):
        run.evaluate(2)


def test_the_first_checkpoint_is_that_of_step_0(tmp_path):
    run = mg.train(CAPTURE_ID, runs_dir=str(tmp_path), **SMALL)
    assert [info.step for info in list_checkpoints(run.path / "checkpoints")] == [0, 128, 256]


def test_scripted_policies_play_in_batches():
    config = resolve(CAPTURE_ID, {}).config
    results = run_baselines(open_environment(config, {}), 16, names=("noop", "rush", "holder"))
    assert {name: result["episodes"] for name, result in results.items()} == {
        "noop": 16, "rush": 16, "holder": 16
    }  # fmt: skip
    rates = {name: result["outcomes"]["captured"]["rate"] for name, result in results.items()}
    assert rates["noop"] == 0.0
    assert rates["holder"] > 0.0
