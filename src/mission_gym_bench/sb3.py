"""Stable-Baselines3's side: its PPO, DQN or SAC with the settings of a config, and its vectors of images.

Our evaluator plays its policies, on the same seeds and at the same steps. Two differences remain: the scale
of continuous actions, and normalization statistics that change within a rollout.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
)

from mission_gym.algorithms.dqn.section import DqnSection
from mission_gym.algorithms.ppo.section import PpoSection
from mission_gym.algorithms.sac.section import SacSection
from mission_gym.config.rules import apply_rules
from mission_gym.config.schema import Config
from mission_gym.data import Array, Leaves
from mission_gym.learner.off_policy import ReplaySection, settled_ratio
from mission_gym.procs import usable_cores
from mission_gym.rollout.play import Actor
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.evaluation import EvalResult, Suite, evaluate
from mission_gym.run.saving import passed_multiple
from mission_gym.run.selection import is_near_end
from mission_gym_bench.runner import (
    Evaluation,
    Measure,
    Stopwatch,
    TrainingJob,
    TrainingResult,
    repeat_work,
)

if TYPE_CHECKING:
    from mission_gym_bench.images import ImageCase, ImageGrid

Form = type[DummyVecEnv | SubprocVecEnv]
_ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU}


def train(job: TrainingJob, folder: Path) -> TrainingResult:
    """Train SB3's PPO, DQN or SAC; the folder stays empty."""
    config = apply_rules(resolve(job.env_id, job.flags))[0].config
    torch.set_num_threads(job.threads)
    form = SubprocVecEnv if job.subproc else DummyVecEnv
    model = _MAKERS[type(config.algorithm)](config, form)
    watcher = _Watcher(config)
    model.learn(config.run.timesteps, callback=watcher)
    warm_s = watcher.watch.read_s() - watcher.first_s
    if config.evaluation.eval_freq and watcher.last_eval != model.num_timesteps:
        watcher.evaluate()
    episodes = [episode["r"] for episode in model.ep_info_buffer or ()]
    return TrainingResult(
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
    return DQN(
        "MlpPolicy",
        _make_env(config, form),
        target_update_interval=dqn.target_update_interval,
        exploration_fraction=dqn.exploration_fraction,
        exploration_initial_eps=dqn.exploration_initial_eps,
        exploration_final_eps=dqn.exploration_final_eps,
        max_grad_norm=dqn.max_grad_norm,
        **_list_replay(config, dqn),
        **_list_shared(config),
    )


def _make_sac(config: Config, form: Form) -> SAC:
    sac, policy = config.algorithm, config.policy
    assert isinstance(sac, SacSection)
    extras = (policy.normalize_obs, policy.normalize_returns, sac.prioritized, sac.critic_layer_norm)
    assert not any(extras), "SB3's SAC has none of these: settings would differ"
    assert (sac.n_step, sac.policy_delay, sac.num_quantiles) == (1, 1, 1), "SB3's SAC has no others"
    assert sac.learn_temperature, "SB3's SAC learns the temperature here"
    return SAC(
        "MlpPolicy",
        _make_env(config, form),
        tau=sac.tau,
        ent_coef=f"auto_{sac.temperature_init}",
        target_entropy="auto" if sac.target_entropy is None else sac.target_entropy,
        **_list_replay(config, sac),
        **_list_shared(config),
    )


def _make_env(config: Config, form: Form) -> VecEnv:
    return make_vec_env(config.env.env_id, config.num_envs, seed=config.run.seed, vec_env_cls=form)


def _list_replay(config: Config, section: ReplaySection) -> dict[str, Any]:
    """Return the arguments that DQN and SAC share."""
    gradient_steps = settled_ratio(section) * config.rollout_size
    assert gradient_steps == int(gradient_steps), "SB3 makes whole gradient steps after each rollout"
    return {
        "train_freq": section.n_steps_per_env,
        "gradient_steps": int(gradient_steps),
        "buffer_size": section.replay_size,
        "learning_starts": section.learning_starts,
    }


def _make_ppo(config: Config, form: Form) -> PPO:
    ppo, policy = config.algorithm, config.policy
    assert isinstance(ppo, PpoSection)
    assert ppo.ent_coef_final is None, "SB3 has no schedule of the entropy weight: settings would differ"
    assert policy.network is None, "SB3 cannot use our networks: settings would differ"
    assert isinstance(ppo.batch_size, int)
    env = _make_env(config, form)
    if policy.normalize_obs or policy.normalize_returns:
        env = VecNormalize(
            env, norm_obs=policy.normalize_obs, norm_reward=policy.normalize_returns, gamma=ppo.gamma
        )
    return PPO(
        "MlpPolicy",
        env,
        n_steps=ppo.n_steps_per_env,
        n_epochs=ppo.n_epochs,
        clip_range=_schedule(ppo.clip_range, ppo.clip_range_final),
        gae_lambda=ppo.gae_lambda,
        ent_coef=ppo.ent_coef,
        vf_coef=ppo.vf_coef,
        target_kl=ppo.target_kl,
        normalize_advantage=ppo.normalize_advantage,
        max_grad_norm=ppo.max_grad_norm,
        **_list_shared(config, log_std_init=policy.log_std_init),
    )


def _list_shared(config: Config, **policy_kwargs: Any) -> dict[str, Any]:
    """Return the arguments that all algorithms share."""
    algorithm: Any = config.algorithm
    network = {
        "net_arch": list(config.policy.network_arch),
        "activation_fn": _ACTIVATIONS[config.policy.activation],
    }
    return {
        "batch_size": algorithm.batch_size,
        "learning_rate": _schedule(algorithm.learning_rate, algorithm.learning_rate_final),
        "gamma": algorithm.gamma,
        "policy_kwargs": network | policy_kwargs,
        "seed": config.run.seed,
        "device": "cpu",
    }


_MAKERS: dict[type, Callable[[Config, Form], BaseAlgorithm]] = {
    DqnSection: _make_dqn,
    PpoSection: _make_ppo,
    SacSection: _make_sac,
}


def _schedule(start: float, end: float | None) -> float | Callable[[float], float]:
    """Return a schedule; SB3 calls it with the remaining share of the training."""
    return start if end is None else lambda left: end + (start - end) * left


def count_gradient_steps(model: BaseAlgorithm) -> int:
    """Return Adam's own counter, since SB3 counts only epochs."""
    optimizer = model.critic.optimizer if isinstance(model, SAC) else model.policy.optimizer
    return int(max((state["step"] for state in optimizer.state.values()), default=0))


class _Watcher(BaseCallback):
    """Reads the watch after the first update, evaluates when our session would, and keeps the best policy."""

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
        """The update before this rollout has ended."""
        step = self.num_timesteps
        if step == self._rollout:
            self.first_s = self.watch.read_s()
        is_due = passed_multiple(step, self.last_eval, self._freq)
        if is_due and not is_near_end(self._total - step, self._freq):
            self.evaluate()

    def _on_step(self) -> bool:
        return True

    def evaluate(self) -> None:
        """Play the selection suite, and keep the policy if it is the best so far."""
        train_s = self.watch.read_s()
        result = self._play("select", self._episodes)
        self.last_eval = self.num_timesteps
        self.evals.append(Evaluation(self.num_timesteps, train_s, result.return_mean))
        if self._best is None or result.score >= self._best[0]:
            weights = copy.deepcopy(self.model.policy.state_dict())
            self._best = result.score, weights, copy.deepcopy(self._statistics)
        self.watch.skip(self.watch.read_s() - train_s)

    def report(self, episodes: int) -> float:
        """Return the mean return of the best policy on the report suite."""
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
    """Wrap a model for our evaluator: greedy, with the statistics of its environments."""
    env = model.get_env()

    def act(obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves) -> tuple[Array, Leaves]:
        (leaf,) = obs
        if isinstance(env, VecNormalize):
            leaf = np.asarray(env.normalize_obs(leaf))
        return model.predict(leaf, deterministic=True)[0], state

    return Actor(act)


def _make_image_vectors(case: ImageCase, spins_per_us: float) -> dict[str, Callable[[], VecEnv]]:
    """Return makers of SB3's vectors of stacked frames, channels first as its convolutions need them."""

    def make(form: Form, **options: Any) -> VecEnv:
        vec = form([case.make_peer(spins_per_us)] * case.num_envs, **options)
        stacked = VecFrameStack(vec, case.num_frames)
        return stacked if case.is_territory else VecTransposeImage(stacked)

    return {
        "sb3 dummy": partial(make, DummyVecEnv),
        "sb3 subproc": partial(make, SubprocVecEnv, start_method="fork"),
    }


@contextmanager
def collect_images(case: ImageCase, grid: ImageGrid, spins_per_us: float) -> Iterator[dict[str, Measure]]:
    """Open SB3's vectors, whose observations go into its rollout buffer."""

    def fill(vec: VecEnv) -> Callable[[], int]:
        buffer = RolloutBuffer(
            grid.num_steps, vec.observation_space, vec.action_space, "cpu", n_envs=case.num_envs
        )
        blank, actions = torch.zeros(case.num_envs), np.zeros(case.num_envs, np.int64)
        obs: Any = vec.reset()

        def work() -> int:
            nonlocal obs
            buffer.reset()
            for _ in range(grid.num_steps):
                after, reward, ended, _ = vec.step(actions)
                buffer.add(obs, actions[:, None], reward, ended, blank, blank)
                obs = after
            return grid.num_steps * case.num_envs

        return work

    with ExitStack() as stack:
        sides: dict[str, Measure] = {}
        for name, make in _make_image_vectors(case, spins_per_us).items():
            vec = stack.enter_context(closing(make()))
            sides[name] = partial(repeat_work, fill(vec), 1)
        yield sides


@contextmanager
def open_image_models(
    case: ImageCase, grid: ImageGrid, spins_per_us: float, learns: bool
) -> Iterator[dict[str, Measure]]:
    """Open SB3's PPO with its NatureCNN in each form, with one thread and with all. learns: whole updates,
    not only the collecting with its policy."""
    rollout = grid.num_steps * case.num_envs

    def make_work(model: PPO) -> Callable[[], int]:
        def learn() -> int:
            model.learn(rollout, reset_num_timesteps=False)
            return rollout

        def collect() -> int:
            model.collect_rollouts(vec, callback, model.rollout_buffer, grid.num_steps)
            return rollout

        if learns:
            return learn
        vec: Any = model.get_env()
        _, callback = model._setup_learn(1 << 40)
        return collect

    with ExitStack() as stack:
        sides: dict[str, Measure] = {}
        for name, make in _make_image_vectors(case, spins_per_us).items():
            for threads in dict.fromkeys((1, usable_cores())):
                vec = stack.enter_context(closing(make()))
                model = PPO(
                    "CnnPolicy", vec, n_steps=grid.num_steps, batch_size=grid.batch_size, seed=1,
                    n_epochs=grid.num_epochs, policy_kwargs={"net_arch": [case.num_hidden]}, device="cpu",
                )  # fmt: skip
                sides[f"{name}, {threads} threads"] = partial(repeat_work, make_work(model), threads)
        yield sides
