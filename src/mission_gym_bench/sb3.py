"""Stable-Baselines3's side of a contest: its PPO or DQN, with the settings of the same config.

It is evaluated by our evaluator, on the same seeds and at the same cadence. What differs is its own:
the scale of continuous actions, and statistics that move within a rollout.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from mission_gym.algorithms.dqn.section import DqnSection
from mission_gym.algorithms.ppo.section import PpoSection
from mission_gym.config.rules import apply_rules
from mission_gym.config.schema import Config
from mission_gym.data import Array, Leaves
from mission_gym.rollout.playing import Actor
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.evaluation import EvalResult, Suite, evaluate
from mission_gym.run.saving import passed_multiple
from mission_gym.run.selection import is_near_end
from mission_gym_bench.sides import Evaluation, Job, Result, Stopwatch

Form = type[DummyVecEnv | SubprocVecEnv]
_ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU}


def train(job: Job, folder: Path) -> Result:
    """Train SB3's PPO or DQN; nothing is written to the folder."""
    config = apply_rules(resolve(job.env_id, job.flags))[0].config
    torch.set_num_threads(job.threads)
    form = SubprocVecEnv if job.subproc else DummyVecEnv
    model = _make_dqn(config, form) if config.run.algo == "dqn" else _make_ppo(config, form)
    watcher = _Watcher(config)
    model.learn(config.run.timesteps, callback=watcher)
    warm_s = watcher.watch.read_s() - watcher.first_s
    if config.evaluation.eval_freq and watcher.last_eval != model.num_timesteps:
        watcher.evaluate()
    episodes = [episode["r"] for episode in model.ep_info_buffer or ()]
    return Result(
        gradient_steps=count_gradient_steps(model),
        warm_steps=model.num_timesteps - config.rollout_size,
        warm_s=warm_s,
        return_mean=float(np.mean(episodes)) if episodes else None,
        evals=watcher.evals,
        report_return=watcher.report(job.report_episodes) if job.report_episodes else None,
    )


def _make_dqn(config: Config, form: Form) -> DQN:
    dqn, policy = config.algorithm, config.policy
    assert isinstance(dqn, DqnSection)
    extras = (dqn.double, dqn.dueling, dqn.prioritized, dqn.exploration == "noisy", policy.normalize_obs)
    assert not any(extras), "SB3's DQN has none of these: settings would differ"
    assert (dqn.n_step, dqn.tau, dqn.loss) == (1, 1.0, "huber"), "SB3's DQN has no others"
    gradient_steps = dqn.replay_ratio * config.rollout_size
    assert gradient_steps == int(gradient_steps), "SB3 makes whole gradient steps after each rollout"
    return DQN(
        "MlpPolicy",
        make_vec_env(config.env.env_id, config.num_envs, seed=config.run.seed, vec_env_cls=form),
        train_freq=dqn.n_steps_per_env,
        gradient_steps=int(gradient_steps),
        batch_size=dqn.batch_size,
        buffer_size=dqn.replay_size,
        learning_starts=dqn.learning_starts,
        learning_rate=_schedule(dqn.learning_rate, dqn.learning_rate_final),
        gamma=dqn.gamma,
        max_grad_norm=dqn.max_grad_norm,
        target_update_interval=dqn.target_update_interval,
        exploration_fraction=dqn.exploration_fraction,
        exploration_initial_eps=dqn.exploration_initial_eps,
        exploration_final_eps=dqn.exploration_final_eps,
        policy_kwargs={
            "net_arch": list(policy.network_arch),
            "activation_fn": _ACTIVATIONS[policy.activation],
        },
        seed=config.run.seed,
        device="cpu",
    )


def _make_ppo(config: Config, form: Form) -> PPO:
    ppo, policy = config.algorithm, config.policy
    assert isinstance(ppo, PpoSection)
    assert ppo.ent_coef_final is None, "SB3 has no schedule of the entropy weight: settings would differ"
    assert policy.network is None, "SB3 can't take our networks: settings would differ"
    assert isinstance(ppo.batch_size, int)
    env: VecEnv = make_vec_env(config.env.env_id, config.num_envs, seed=config.run.seed, vec_env_cls=form)
    if policy.normalize_obs or policy.normalize_returns:
        env = VecNormalize(
            env, norm_obs=policy.normalize_obs, norm_reward=policy.normalize_returns, gamma=ppo.gamma
        )
    return PPO(
        "MlpPolicy",
        env,
        n_steps=ppo.n_steps_per_env,
        batch_size=ppo.batch_size,
        n_epochs=ppo.n_epochs,
        learning_rate=_schedule(ppo.learning_rate, ppo.learning_rate_final),
        clip_range=_schedule(ppo.clip_range, ppo.clip_range_final),
        gamma=ppo.gamma,
        gae_lambda=ppo.gae_lambda,
        ent_coef=ppo.ent_coef,
        vf_coef=ppo.vf_coef,
        max_grad_norm=ppo.max_grad_norm,
        target_kl=ppo.target_kl,
        normalize_advantage=ppo.normalize_advantage,
        policy_kwargs={
            "net_arch": list(policy.network_arch),
            "activation_fn": _ACTIVATIONS[policy.activation],
            "log_std_init": policy.log_std_init,
        },
        seed=config.run.seed,
        device="cpu",
    )


def _schedule(start: float, end: float | None) -> float | Callable[[float], float]:
    """SB3 gives a schedule the share of the training that is left."""
    return start if end is None else lambda left: end + (start - end) * left


def count_gradient_steps(model: BaseAlgorithm) -> int:
    """Adam's own counter: SB3 counts epochs only."""
    return int(max((state["step"] for state in model.policy.optimizer.state.values()), default=0))


class _Watcher(BaseCallback):
    """Reads the watch after the first update, evaluates where our session would, and keeps the best."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.watch = Stopwatch()
        self.first_s = 0.0
        self.evals: list[Evaluation] = []
        self.last_eval = 0
        self._rollout, self._total = config.rollout_size, config.run.timesteps
        self._freq, self._episodes = int(config.evaluation.eval_freq), config.evaluation.eval_episodes
        self._environment = open_environment(config, dict(config.env.env_kwargs))
        self._best: tuple[float, dict[str, Any], Any] | None = None

    def _on_training_start(self) -> None:
        self.watch = Stopwatch()

    def _on_rollout_start(self) -> None:
        """The update before this rollout is over."""
        step = self.num_timesteps
        if step == self._rollout:
            self.first_s = self.watch.read_s()
        is_due = passed_multiple(step, self.last_eval, self._freq)
        if is_due and not is_near_end(self._total - step, self._freq):
            self.evaluate()

    def _on_step(self) -> bool:
        return True

    def evaluate(self) -> None:
        """Play the selection suite, and keep the policy if none was better."""
        train_s = self.watch.read_s()
        result = self._play("select", self._episodes)
        self.last_eval = self.num_timesteps
        self.evals.append(Evaluation(self.num_timesteps, train_s, result.return_mean))
        if self._best is None or result.score >= self._best[0]:
            weights = copy.deepcopy(self.model.policy.state_dict())
            self._best = result.score, weights, copy.deepcopy(self._statistics)
        self.watch.skip(self.watch.read_s() - train_s)

    def report(self, episodes: int) -> float:
        """The mean return of the best policy on the report suite."""
        assert self._best is not None  # a job with a report has evaluations
        _, weights, statistics = self._best
        self.model.policy.load_state_dict(weights)
        if isinstance(self.training_env, VecNormalize):
            self.training_env.obs_rms = statistics
        return self._play("report", episodes).return_mean

    @property
    def _statistics(self) -> Any:
        return self.training_env.obs_rms if isinstance(self.training_env, VecNormalize) else None

    def _play(self, suite: Suite, episodes: int) -> EvalResult:
        return evaluate(self._environment, make_actor(self.model), suite, episodes)


def make_actor(model: BaseAlgorithm) -> Actor:
    """A model as our evaluator plays it: greedy, with the statistics of its environments."""
    env = model.get_env()

    def act(obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves) -> tuple[Array, Leaves]:
        (leaf,) = obs
        if isinstance(env, VecNormalize):
            leaf = np.asarray(env.normalize_obs(leaf))
        return model.predict(leaf, deterministic=True)[0], state

    return Actor(act)
