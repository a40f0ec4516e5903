"""Stable-Baselines3's PPO with its own defaults: `PPO("MlpPolicy", env)`, or `"CnnPolicy"` for what it
takes for a picture, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.preprocessing import is_image_space

from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym_bench.defaults.exam import Examiner
from mission_gym_bench.sb3 import count_gradient_steps, make_actor
from mission_gym_bench.sides import Job, Result


def train(job: Job, folder: Path) -> Result:
    """Train in this process, with one environment; nothing is written to the folder."""
    env = make_factory(EnvRequest(job.env_id))()
    return examine(job, PPO(choose_policy(env), env, seed=job.flags["seed"], device="cpu"))


def choose_policy(env: Any) -> str:
    """The policy for the environment's observations."""
    return "CnnPolicy" if is_image_space(env.observation_space) else "MlpPolicy"


def examine(job: Job, model: PPO) -> Result:
    """Train a model that was made, under an examiner's eyes."""
    with Examiner(job) as examiner:
        model.learn(job.flags["timesteps"], callback=_Watcher(examiner))
        return examiner.finish(model.num_timesteps, make_actor(model), count_gradient_steps(model))


class _Watcher(BaseCallback):
    def __init__(self, examiner: Examiner) -> None:
        super().__init__()
        self._examiner = examiner

    def _on_training_start(self) -> None:
        self._examiner.begin()

    def _on_rollout_start(self) -> None:
        """The update before this rollout is over."""
        self._examiner.look(self.num_timesteps, lambda: make_actor(self.model))

    def _on_step(self) -> bool:
        return True
