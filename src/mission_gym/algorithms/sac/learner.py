"""SAC's learner: the noise of its gradient steps, and its metrics.

The replay, the count of due gradient steps and unfinished updates are in `learner.off_policy_learner`.
`make_learner` makes it from a config. Its compiled kernel and devices are verified against `loss`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from mission_gym.algorithms.sac.algorithm import Sac, target_entropy
from mission_gym.algorithms.sac.compiled_kernel import CompiledSacKernel
from mission_gym.algorithms.sac.kernel import (
    ACTOR_LOSS,
    ACTOR_NORM,
    ACTOR_STEPS,
    ALPHA,
    CRITIC_LOSS,
    ENTROPY,
    ERROR,
    GRAD_NORM,
    NUM_STATS,
    VALUE,
    SacKernel,
    SacSettings,
)
from mission_gym.algorithms.sac.section import SacSection, sac_section
from mission_gym.algorithms.sac.torch_kernel import TorchSacKernel
from mission_gym.config.schema import Config, Settled
from mission_gym.data import Array, EnvSpec
from mission_gym.learner.off_policy import make_replay_layout
from mission_gym.learner.off_policy_learner import OffPolicyLearner, StepStats, Transitions
from mission_gym.learner.replay import ReplayLayout
from mission_gym.learner.verify import draw_inputs, find_device_disagreement, find_disagreement
from mission_gym.policy import Encoded, Encoder, PolicySpec
from mission_gym.streams import generator, torch_seed

_ROWS = 64


class SacLearner(OffPolicyLearner):
    """See `learner.contract.Learner`. section: its hyperparameters, explained in docs/algorithms/sac.md."""

    kernel: SacKernel
    NUM_STATS = NUM_STATS
    NORM = GRAD_NORM
    REMEDY = "Lower learning_rate or scale the rewards"

    def __init__(
        self, kernel: SacKernel, spec: PolicySpec, section: SacSection, layout: ReplayLayout, **options: Any
    ) -> None:
        """options: those of `OffPolicyLearner`."""
        super().__init__(spec, section, layout, **options)
        self.kernel = kernel
        self.section = section

    def exploration(self) -> float:
        """1, uniform actions, until learning starts; the policy explores afterwards."""
        return float(self.step < self.section.learning_starts)

    def _learn(self, batch: Transitions, learning_rate: float, first: int) -> StepStats:
        num, size, width = len(batch.action), self.section.batch_size, batch.action.shape[1]
        noise = np.stack(
            [
                generator(self.seed, "sac", self.version, first + number).standard_normal(
                    (2, size, width), np.float32
                )
                for number in range(num // size)
            ]
        )
        return self.kernel.learn(batch, noise, learning_rate, self._num_steps_done + first)

    def _describe(self, means: list[float] | None) -> dict[str, float]:
        if means is None:
            return {}
        metrics = {
            "train/loss": means[CRITIC_LOSS],
            "train/q_mean": means[VALUE] * self.unit,
            "train/td_error": means[ERROR] * self.unit,
            "train/alpha": means[ALPHA] * self.unit,
        }
        if moved := means[ACTOR_STEPS]:
            metrics |= {
                "train/actor_loss": means[ACTOR_LOSS] / moved,
                "train/actor_norm": means[ACTOR_NORM] / moved,
                "train/entropy": means[ENTROPY] / moved,
            }
        return metrics


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


def make_kernel(
    policy: PolicySpec, seed: int, settings: SacSettings, name: str, device: str = "cpu", threads: int = 1
) -> SacKernel:
    """The kernel of this name, with initial weights drawn from the seed."""
    if name == "compiled":
        drawn = TorchSacKernel(policy, seed, settings).parameters()
        return CompiledSacKernel(policy, drawn, settings, threads)
    return TorchSacKernel(policy, seed, settings, device)


def make_learner(config: Settled, spec: EnvSpec) -> SacLearner:
    """A learner with initial weights drawn from the run's seed, and an empty replay."""
    policy, section, seed = Sac().layout(config, spec), sac_section(config), config.run.seed
    settings, compute = make_settings(section, spec.action.num_reals), config.compute
    drawn = torch_seed(seed, "init")
    return SacLearner(
        make_kernel(policy, drawn, settings, compute.kernel, compute.device, compute.threads),
        policy,
        section,
        make_replay_layout(config, spec),
        total_steps=config.run.timesteps,
        seed=seed,
        normalize_returns=config.policy.normalize_returns,
    )


def verify_compiled_kernel(config: Config, spec: EnvSpec, threads: int) -> str:
    """Where the compiled kernel disagrees with the loss; empty if nowhere."""
    settings = make_settings(sac_section(config), spec.action.num_reals, _ROWS)
    return verify_kernel(Sac().layout(config, spec), settings, threads)


@cache
def verify_kernel(policy: PolicySpec, settings: SacSettings, threads: int) -> str:
    """Both kernels start from equal weights, with different targets of the critics, and get minibatches in
    which every field matters, of small values and of large ones."""
    rng = generator("proof")
    reference = TorchSacKernel(policy, 0, settings)
    initial = {
        name: array + rng.normal(0.0, 0.1, array.shape).astype(np.float32)
        for name, array in reference.parameters().items()
    }
    compiled = CompiledSacKernel(policy, initial, settings, threads)
    reference.load_parameters(initial)
    compiled.load_parameters(initial)
    for scale in (1.0, 100.0):
        ends = [Encoded(rng.standard_normal((_ROWS, policy.num_flat), np.float32), ()) for _ in range(2)]
        batch, noise = _make_batch(policy.action.num_reals, scale, rng, *ends)
        found, expected = (each.differentiate(batch, noise) for each in (compiled, reference))
        if cause := find_disagreement(found, expected):
            return cause
    return ""


def verify_device(config: Settled, spec: EnvSpec) -> str:
    """Where the device disagrees with the CPU, or a captured step with the same step; empty if nowhere."""
    policy, rng, section = Sac().layout(config, spec), generator("proof"), sac_section(config)
    num_reals = spec.action.num_reals
    settings = make_settings(section, num_reals, _ROWS)
    encoder = Encoder(policy.leaves, False, policy.critic_leaves)
    ends = (encoder.encode(draw_inputs(spec, _ROWS, rng)) for _ in range(2))
    batch, noise = _make_batch(num_reals, 1.0, rng, *ends)
    reference = TorchSacKernel(policy, 0, settings)
    kernel = TorchSacKernel(policy, 0, settings, config.compute.device)
    found, expected = (each.differentiate(batch, noise) for each in (kernel, reference))

    def step() -> None:
        kernel.learn(batch, noise[None], section.learning_rate, 0)

    return find_device_disagreement(found, expected, config.compute.precision, kernel, step)


def _make_batch(
    num_reals: int, scale: float, rng: np.random.Generator, inputs: Encoded, next_inputs: Encoded
) -> tuple[Transitions, Array]:
    """Rows with ends of episodes, and every other field random; and the noise of a step."""
    batch = Transitions(
        inputs=inputs,
        action=rng.uniform(-1.0, 1.0, (_ROWS, num_reals)).astype(np.float32),
        reward=(scale * rng.normal(0.0, 2.0, _ROWS)).astype(np.float32),
        discount=(0.9 * (rng.random(_ROWS) < 0.8)).astype(np.float32),
        next_inputs=next_inputs,
        next_mask=None,
        weight=rng.uniform(0.1, 1.0, _ROWS).astype(np.float32),
    )
    return batch, rng.standard_normal((2, _ROWS, num_reals), np.float32)
