"""DQN's learner: gradient steps on replayed transitions, a target network, and epsilon.

The replay, the count of due gradient steps and unfinished updates are in `learner.off_policy_learner`.
`make_learner` makes it from a config. Its compiled kernel and devices are verified against `loss`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from mission_gym.algorithms.dqn.algorithm import Dqn
from mission_gym.algorithms.dqn.compiled_kernel import CompiledQKernel
from mission_gym.algorithms.dqn.kernel import (
    ERROR,
    GRAD_NORM,
    LOSS,
    NUM_STATS,
    TARGET,
    VALUE,
    QKernel,
    QSettings,
    make_settings,
)
from mission_gym.algorithms.dqn.section import DqnSection, dqn_section
from mission_gym.algorithms.dqn.torch_kernel import TorchQKernel
from mission_gym.config.schema import Config, Settled
from mission_gym.data import EnvSpec
from mission_gym.learner.contract import Schedule
from mission_gym.learner.off_policy import make_replay_layout
from mission_gym.learner.off_policy_learner import OffPolicyLearner, StepStats, Transitions
from mission_gym.learner.replay import ReplayLayout
from mission_gym.learner.verify import draw_inputs, find_device_disagreement, find_disagreement
from mission_gym.policy import Encoded, Encoder, PolicySpec
from mission_gym.policy.torch_forms import QNetwork, model_arrays
from mission_gym.streams import generator, torch_seed

_ROWS = 64


class DqnLearner(OffPolicyLearner):
    """See `learner.contract.Learner`. section: its hyperparameters, explained in docs/algorithms/dqn.md."""

    kernel: QKernel
    section: DqnSection
    NUM_STATS = NUM_STATS
    NORM = GRAD_NORM
    REMEDY = "Lower learning_rate, scale the rewards or set loss=huber"

    def __init__(
        self, kernel: QKernel, spec: PolicySpec, section: DqnSection, layout: ReplayLayout, **options: Any
    ) -> None:
        """options: those of `OffPolicyLearner`."""
        super().__init__(spec, section, layout, **options)
        self.kernel = kernel
        steps = max(1, round(section.exploration_fraction * options["total_steps"]))
        self._epsilon = Schedule(section.exploration_initial_eps, section.exploration_final_eps, steps)
        if section.exploration == "noisy":
            self._epsilon = Schedule(0.0, 0.0, 1)

    def exploration(self) -> float:
        return self._epsilon.at(self.step)

    def _learn(self, batch: Transitions, learning_rate: float, first: int) -> StepStats:
        settings = make_settings(self.section, self.section.batch_size, learning_rate)
        return self.kernel.learn(
            batch, settings, lambda number: generator(self.seed, "noisy", self.version, first + number)
        )

    def _finish_update(self, after: int) -> None:
        interval = self.section.target_update_interval
        if self.section.tau == 1.0 and after // interval > self.step // interval:
            self.kernel.copy_to_target()

    def _describe(self, means: list[float] | None) -> dict[str, float]:
        metrics = {"rollout/exploration_rate": self.exploration()}
        if means is not None:
            metrics |= {
                "train/loss": means[LOSS],
                "train/q_mean": means[VALUE] * self.unit,
                "train/td_error": means[ERROR] * self.unit,
            }
        return metrics


def make_learner(config: Settled, spec: EnvSpec) -> DqnLearner:
    """A learner with initial weights drawn from the run's seed, and an empty replay."""
    policy, seed = Dqn().layout(config, spec), config.run.seed
    drawn = torch_seed(seed, "init")
    kernel: QKernel
    if config.compute.kernel == "compiled":
        kernel = CompiledQKernel(policy, model_arrays(QNetwork(policy, drawn)))
    else:
        kernel = TorchQKernel(policy, drawn, config.compute.device)
    return DqnLearner(
        kernel,
        policy,
        dqn_section(config),
        make_replay_layout(config, spec),
        total_steps=config.run.timesteps,
        seed=seed,
        normalize_returns=config.policy.normalize_returns,
    )


def verify_compiled_kernel(config: Config, spec: EnvSpec) -> str:
    """Where the compiled kernel disagrees with the loss; empty if nowhere."""
    settings = make_settings(dqn_section(config), _ROWS, 0.0)
    return verify_kernel(Dqn().layout(config, spec), settings, spec.mask_size)


@cache
def verify_kernel(policy: PolicySpec, settings: QSettings, mask_size: int) -> str:
    """Both kernels start from equal weights, with a different target network, and get minibatches in which
    every field matters, of small values and of large ones."""
    rng = generator("proof")
    reference = TorchQKernel(policy, seed=0)
    initial = reference.acting()
    online, target = (
        {
            name: array + rng.normal(0.0, 0.3, array.shape).astype(np.float32)
            for name, array in initial.items()
        }
        for _ in range(2)
    )
    compiled = CompiledQKernel(policy, online)
    for kernel in (reference, compiled):
        kernel.load_parameters(online | {f"{TARGET}.{name}": array for name, array in target.items()})
    for scale in (1.0, 100.0):
        batch = _make_batch(policy, mask_size, scale, rng, *(_draw_flat(policy, rng) for _ in range(2)))
        expected = reference.differentiate(batch, settings)
        if cause := find_disagreement(compiled.differentiate(batch, settings), expected):
            return cause
    return ""


def verify_device(config: Settled, spec: EnvSpec) -> str:
    """Where the device disagrees with the CPU, or a captured step with the same step; empty if nowhere."""
    policy, rng, dqn = Dqn().layout(config, spec), generator("proof"), dqn_section(config)
    settings = make_settings(dqn, _ROWS, dqn.learning_rate)
    encoder = Encoder(policy.leaves, normalize=False)
    ends = (encoder.encode(draw_inputs(spec, _ROWS, rng)) for _ in range(2))
    batch = _make_batch(policy, spec.mask_size, 1.0, rng, *ends)
    reference, kernel = TorchQKernel(policy, seed=0), TorchQKernel(policy, 0, config.compute.device)
    found, expected = (each.differentiate(batch, settings) for each in (kernel, reference))

    def step() -> None:
        kernel.learn(batch, settings, lambda number: generator("proof", "noisy", number))

    return find_device_disagreement(found, expected, config.compute.precision, kernel, step)


def _make_batch(
    policy: PolicySpec,
    mask_size: int,
    scale: float,
    rng: np.random.Generator,
    inputs: Encoded,
    next_inputs: Encoded,
) -> Transitions:
    """Rows with masks, ends of episodes, errors on both sides of 1, and every other field random."""
    mask = None
    if mask_size:
        mask = rng.random((_ROWS, mask_size)) < 0.6
        mask[:, 0] = True
    return Transitions(
        inputs=inputs,
        action=rng.integers(0, policy.num_outputs, (_ROWS, 1)),
        reward=(scale * rng.normal(0.0, 2.0, _ROWS)).astype(np.float32),
        discount=(0.9 * (rng.random(_ROWS) < 0.8)).astype(np.float32),
        next_inputs=next_inputs,
        next_mask=mask,
        weight=rng.uniform(0.1, 1.0, _ROWS).astype(np.float32),
    )


def _draw_flat(policy: PolicySpec, rng: np.random.Generator) -> Encoded:
    return Encoded(rng.standard_normal((_ROWS, policy.num_flat), np.float32), ())
