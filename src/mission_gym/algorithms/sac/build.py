"""SAC's learner for a config, and the verification of devices against the CPU."""

from __future__ import annotations

import numpy as np

from mission_gym.algorithms.sac.algorithm import Sac, target_entropy
from mission_gym.algorithms.sac.kernel import SacKernel, SacSettings
from mission_gym.algorithms.sac.learner import SacLearner
from mission_gym.algorithms.sac.section import SacSection, sac_section
from mission_gym.config.schema import Settled
from mission_gym.data import EnvSpec
from mission_gym.learner.off_policy import make_replay_layout
from mission_gym.learner.off_policy_learner import Transitions
from mission_gym.learner.verify import draw_inputs, find_device_disagreement
from mission_gym.policy import Encoder
from mission_gym.streams import generator, torch_seed

_ROWS = 64


def make_settings(section: SacSection, num_reals: int, batch_size: int | None = None) -> SacSettings:
    """The settings of gradient steps."""
    return SacSettings(
        batch_size=batch_size or section.batch_size,
        tau=section.tau,
        policy_delay=section.policy_delay,
        target_entropy=target_entropy(section, num_reals) if section.learn_temperature else None,
        num_dropped=section.drop_quantiles,
        num_quantiles=section.num_quantiles,
        layer_norm=section.critic_layer_norm,
        temperature=section.temperature_init,
    )


def make_learner(config: Settled, spec: EnvSpec) -> SacLearner:
    """A learner with initial weights drawn from the run's seed, and an empty replay."""
    policy, section, seed = Sac().layout(config, spec), sac_section(config), config.run.seed
    settings = make_settings(section, spec.action.num_reals)
    return SacLearner(
        SacKernel(policy, torch_seed(seed, "init"), settings, config.compute.device),
        policy,
        section,
        make_replay_layout(config, spec),
        total_steps=config.run.timesteps,
        seed=seed,
        normalize_returns=config.policy.normalize_returns,
    )


def verify_device(config: Settled, spec: EnvSpec) -> str:
    """Where the device disagrees with the CPU, or a captured step with the same step; empty if nowhere."""
    policy, rng, section = Sac().layout(config, spec), generator("proof"), sac_section(config)
    num_reals = spec.action.num_reals
    settings = make_settings(section, num_reals, _ROWS)
    encoder = Encoder(policy.leaves, False, policy.critic_leaves)
    inputs, next_inputs = (encoder.encode(draw_inputs(spec, _ROWS, rng)) for _ in range(2))
    batch = Transitions(
        inputs=inputs,
        action=rng.uniform(-1.0, 1.0, (_ROWS, num_reals)).astype(np.float32),
        reward=rng.normal(0.0, 2.0, _ROWS).astype(np.float32),
        discount=(0.9 * (rng.random(_ROWS) < 0.8)).astype(np.float32),
        next_inputs=next_inputs,
        next_mask=None,
        weight=rng.uniform(0.1, 1.0, _ROWS).astype(np.float32),
    )
    noise = rng.standard_normal((1, 2, _ROWS, num_reals), np.float32)
    reference, kernel = SacKernel(policy, 0, settings), SacKernel(policy, 0, settings, config.compute.device)
    found, expected = (each.differentiate(batch, noise[0]) for each in (kernel, reference))

    def step() -> None:
        kernel.learn(batch, noise, section.learning_rate, 0)

    return find_device_disagreement(found, expected, config.compute.precision, kernel, step)
