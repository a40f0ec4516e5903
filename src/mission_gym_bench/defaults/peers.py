"""The peers of `bench defaults`, both trained by Stable-Baselines3's PPO; and SB3's SAC for `bench sac`.

SB3's defaults: `PPO("MlpPolicy", env)`, or `"CnnPolicy"` for observations that SB3 takes for images.
CleanRL's published values: those of ppo.py for discrete actions, of ppo_continuous_action.py for Box actions,
with SB3's VecNormalize as its wrappers, and of ppo_atari.py for images. Networks, initial weights and Adam's
epsilon are equal. CleanRL halves the squared value error, so its weight of 0.5 is 0.25 here. Two details stay
SB3's: values are bootstrapped at truncation, and only the clipped error of a clipped value counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymnasium import spaces
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym_bench.ours import Examiner
from mission_gym_bench.runner import TrainingJob, TrainingResult
from mission_gym_bench.sb3 import count_gradient_steps, make_actor

_GAMMA = 0.99
_DISCRETE: dict[str, Any] = {"n_steps": 128, "batch_size": 128, "n_epochs": 4, "ent_coef": 0.01}
_CONTINUOUS: dict[str, Any] = {"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "ent_coef": 0.0}
_IMAGES: dict[str, Any] = _DISCRETE | {"batch_size": 256, "clip_range": 0.1, "clip_range_vf": 0.1}


def train_sb3(job: TrainingJob, folder: Path) -> TrainingResult:
    """Train SB3's defaults with one environment; the folder stays empty."""
    env = make_factory(EnvRequest(job.env_id))()
    make: type[PPO | SAC] = SAC if job.flags.get("algo") == "sac" else PPO
    return _train(job, make(_choose_policy(env), env, seed=job.flags["seed"], device="cpu"))


def train_cleanrl(job: TrainingJob, folder: Path) -> TrainingResult:
    """Train CleanRL's values; the folder stays empty."""
    seed, factory = job.flags["seed"], make_factory(EnvRequest(job.env_id))
    env: VecEnv = make_vec_env(factory, 1, seed=seed)
    continuous, policy = isinstance(env.action_space, spaces.Box), _choose_policy(env)
    values = _CONTINUOUS if continuous else _IMAGES if policy == "CnnPolicy" else _DISCRETE
    if continuous:
        env = VecNormalize(env, gamma=_GAMMA)
    else:
        env.close()
        env = make_vec_env(factory, 8 if values is _IMAGES else 4, seed=seed)
    initial_rate = 3e-4 if continuous else 2.5e-4
    shared = {"gamma": _GAMMA, "gae_lambda": 0.95, "clip_range": 0.2, "clip_range_vf": 0.2, "vf_coef": 0.25}
    model = PPO(
        policy,
        env,
        learning_rate=lambda left: initial_rate * left,
        max_grad_norm=0.5,
        seed=seed,
        device="cpu",
        **shared | values,
    )
    return _train(job, model)


def _choose_policy(env: Any) -> str:
    return "CnnPolicy" if is_image_space(env.observation_space) else "MlpPolicy"


def _train(job: TrainingJob, model: BaseAlgorithm) -> TrainingResult:
    """Train a model with exams."""
    with Examiner(job) as examiner:
        model.learn(job.flags["timesteps"], callback=_Exams(examiner))
        return examiner.finish(model.num_timesteps, make_actor(model), count_gradient_steps(model))


class _Exams(BaseCallback):
    def __init__(self, examiner: Examiner) -> None:
        super().__init__()
        self._examiner = examiner

    def _on_training_start(self) -> None:
        self._examiner.begin()

    def _on_rollout_start(self) -> None:  # the update before this rollout has ended
        self._examiner.look(self.num_timesteps, lambda: make_actor(self.model))

    def _on_step(self) -> bool:
        return True
