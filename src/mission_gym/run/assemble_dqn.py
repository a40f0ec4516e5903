"""From a resolved config to DQN: the layout of its replay, its learner, and what it can't do."""

from __future__ import annotations

from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec
from mission_gym.learner.dqn import DqnLearner, DqnSettings
from mission_gym.learner.ppo import PpoLearner, Schedule
from mission_gym.learner.q_kernel import QKernel
from mission_gym.learner.q_numpy_kernel import NumpyQKernel
from mission_gym.learner.replay import Layout
from mission_gym.policy import Encoder, PolicySpec
from mission_gym.streams import torch_seed

Learner = PpoLearner | DqnLearner


def has_analytic(config: Config, threads: int) -> bool:
    """Whether the NumPy kernel may learn: it has no noisy layers, and computes in one thread."""
    return config.dqn.exploration != "noisy" and (threads == 1 or config.compute.kernel == "numpy")


def find_misfits(config: Config, spec: EnvSpec, sources: dict[str, str]) -> list[str]:
    """A problem for each thing that DQN can't do in this environment."""
    problems = []
    if spec.action.kind != "categories" or len(spec.action.nvec) != 1:
        problems.append(
            f"algo=dqn needs one choice among actions (Discrete), and {spec.env_id} acts with"
            f" {type(spec.action_space).__name__}; use ppo [{sources['run.algo']}]"
        )
    if config.compute.kernel == "numpy" and config.dqn.exploration == "noisy":
        problems.append(
            "kernel=numpy is not possible: it has no noisy layers; use torch or auto"
            f" [{sources['compute.kernel']}]"
        )
    if config.compute.precision == "bf16":
        problems.append(f"precision=bf16 is ppo's alone; remove it [{sources['compute.precision']}]")
    frames = config.dqn.frame_stack
    images = [leaf for leaf in spec.leaves if leaf.kind == "image"]
    if frames > 1 and not (images and all(leaf.shape[0] == frames for leaf in images)):
        shapes = ", ".join(str(list(leaf.shape)) for leaf in images) or "none"
        problems.append(
            f"frame_stack={frames} needs images whose first axis is {frames} frames, and the images"
            f" are {shapes} [{sources['dqn.frame_stack']}]"
        )
    return problems


def replay_layout(config: Config, spec: EnvSpec) -> Layout:
    """The replay that the config asks for in this environment."""
    dqn = config.dqn
    return Layout(
        leaves=spec.leaves,
        mask_size=spec.mask_size,
        num_envs=config.vector.n_envs,
        capacity=dqn.replay_size,
        n_step=dqn.n_step,
        gamma=dqn.gamma,
        frame_stack=dqn.frame_stack,
        episode_steps=spec.max_episode_steps or Layout._field_defaults["episode_steps"],
    )


def make_dqn_learner(config: Config, spec: EnvSpec, policy: PolicySpec) -> DqnLearner:
    """A learner with fresh weights drawn from the run's seed and an empty replay."""
    from mission_gym.learner.q_torch_kernel import TorchQKernel
    from mission_gym.policy.q_torch import QNetwork
    from mission_gym.policy.torch_form import model_arrays

    dqn, total, seed = config.dqn, config.run.timesteps, config.run.seed
    rate_end = dqn.learning_rate if dqn.learning_rate_final is None else dqn.learning_rate_final
    falls = max(1, round(dqn.exploration_fraction * total))
    noisy = dqn.exploration == "noisy"
    settings = DqnSettings(
        batch_size=dqn.batch_size,
        replay_ratio=dqn.replay_ratio,
        learning_starts=dqn.learning_starts,
        learning_rate=Schedule(dqn.learning_rate, rate_end, total),
        max_grad_norm=dqn.max_grad_norm,
        huber=dqn.loss == "huber",
        double=dqn.double,
        tau=dqn.tau,
        target_update_interval=dqn.target_update_interval,
        epsilon=Schedule(0.0, 0.0, 1)
        if noisy
        else Schedule(dqn.exploration_initial_eps, dqn.exploration_final_eps, falls),
        prioritized_alpha=dqn.prioritized_alpha if dqn.prioritized else None,
        prioritized_beta=Schedule(dqn.prioritized_beta, 1.0, total),
    )
    drawn = torch_seed(seed, "init")
    kernel: QKernel
    if config.compute.kernel == "numpy":
        # Without torch's optimizer, whose first use loads its compiler.
        num_flat = Encoder(policy.leaves, normalize=False).num_flat
        kernel = NumpyQKernel(policy, num_flat, model_arrays(QNetwork(policy, drawn)))
    else:
        kernel = TorchQKernel(policy, drawn, config.compute.device)
    return DqnLearner(kernel, policy, settings, replay_layout(config, spec), seed)
