"""Runs of games over a bridge; `run/test_exact_resume.py` stops and resumes them."""

from __future__ import annotations

from pathlib import Path

from games import game, processes
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from timeouts import wait_until

SMALL = {
    "n_envs": 3, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 2, "timesteps": 144, "eval_freq": 0,
    "network_arch": "8", "seed": 3, "tensorboard": False, "tune": False,
}  # fmt: skip


def test_the_cpu_time_of_games_is_that_of_the_run(tmp_path: Path) -> None:
    """Otherwise a run that computes in its games would be advised to end them."""
    wanted = SMALL | {"runs_dir": str(tmp_path), "vector": "serial"}
    with start_run(resolve(f"bridge:{game('walk_game')}", wanted), lambda event: None) as session:
        for _ in session.updates():
            break
        assert not session.telemetry.env_cpu_is_known
        readings = session.telemetry.sampler._readings
        wait_until(lambda: {each.pid for each in processes()} <= {each.pid for each in readings._below})
