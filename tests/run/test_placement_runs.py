"""The placement mission as a run: legal from the first to the last step, its rules belong to the run."""

import pytest

import mission_gym as mg
from mission_gym.errors import ConfigError
from mission_gym.run.baselines import run_baselines
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym_missions import PLACEMENT_ID
from mission_gym_missions.placement.rules import SHIPPED

SMALL = {
    "n_envs": 64, "n_steps_per_env": 8, "timesteps": 2048, "batch_size": 128, "n_epochs": 1,
    "network_arch": "8", "eval_freq": 1024, "eval_episodes": 8, "tensorboard": False, "progress": False,
}  # fmt: skip


def test_a_run_owns_its_rules_and_places_every_station(tmp_path):
    rules = tmp_path / "mine.yaml"
    rules.write_text(SHIPPED.read_text().replace("walk_m: 600", "walk_m: 500"))
    kwargs = [
        f"rules_file={rules}",
        "num_sites=8",
        "num_stations=8",
    ]  # all actions become illegal, one by one
    run = mg.train(PLACEMENT_ID, runs_dir=str(tmp_path / "runs"), env_kwargs=kwargs, **SMALL)
    before = run.evaluate(8)
    assert before["length_mean"] == 8
    rules.write_text("nonsense: 1\n")
    assert run.evaluate(8) == before
    (run.path / "env" / "mine.yaml").write_text("nonsense: 1\n")
    with pytest.raises(ConfigError, match=r"unknown key .nonsense. .*mine.yaml, line 1"):
        run.evaluate(2)


@pytest.mark.slow
def test_ppo_beats_greedy_within_a_short_run(tmp_path):
    run = mg.train(
        PLACEMENT_ID, runs_dir=str(tmp_path), seed=1, timesteps="80k", eval_freq=0,
        env_kwargs=["num_sites=10", "num_stations=3", "num_demand=25"], tensorboard=False, progress=False,
    )  # fmt: skip
    config = resolve(PLACEMENT_ID, {"env_kwargs": ["num_sites=10", "num_stations=3", "num_demand=25"]}).config
    planners = run_baselines(open_environment(config, dict(config.env.env_kwargs)), 256)
    trained = run.evaluate(256)["return_mean"]
    assert trained >= planners["greedy"]["return_mean"]
    assert trained >= 0.97 * planners["exact"]["return_mean"]
