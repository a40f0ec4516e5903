"""CleanRL's published values, run by SB3's PPO: those of its ppo.py for discrete actions, those of its
ppo_continuous_action.py for Box ones, whose wrappers are SB3's VecNormalize here, and those of its
ppo_atari.py for pictures.

Networks, their first weights and Adam's epsilon are the same in both. CleanRL halves the squared error of
values, so its weight of 0.5 is 0.25 here. Two things stay SB3's: values are bootstrapped at truncation, and
where a value was clipped, only the clipped error counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym_bench.defaults.sb3 import choose_policy, examine
from mission_gym_bench.sides import Job, Result

_GAMMA = 0.99
_DISCRETE: dict[str, Any] = {"n_steps": 128, "batch_size": 128, "n_epochs": 4, "ent_coef": 0.01}
_CONTINUOUS: dict[str, Any] = {"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "ent_coef": 0.0}
_PICTURES: dict[str, Any] = _DISCRETE | {"batch_size": 256, "clip_range": 0.1, "clip_range_vf": 0.1}


def train(job: Job, folder: Path) -> Result:
    """Train in this process; nothing is written to the folder."""
    seed, factory = job.flags["seed"], make_factory(EnvRequest(job.env_id))
    env: VecEnv = make_vec_env(factory, 1, seed=seed)
    continuous, policy = isinstance(env.action_space, spaces.Box), choose_policy(env)
    values = _CONTINUOUS if continuous else _PICTURES if policy == "CnnPolicy" else _DISCRETE
    if continuous:
        env = VecNormalize(env, gamma=_GAMMA)
    else:
        env.close()
        env = make_vec_env(factory, 8 if values is _PICTURES else 4, seed=seed)
    first_rate = 3e-4 if continuous else 2.5e-4
    shared = {"gamma": _GAMMA, "gae_lambda": 0.95, "clip_range": 0.2, "clip_range_vf": 0.2, "vf_coef": 0.25}
    model = PPO(
        policy,
        env,
        learning_rate=lambda left: first_rate * left,
        max_grad_norm=0.5,
        seed=seed,
        device="cpu",
        **shared | values,
    )
    return examine(job, model)
