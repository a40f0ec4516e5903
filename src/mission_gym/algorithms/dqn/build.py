"""DQN's learner for a config, and the proof that its compiled kernel computes `loss`."""

from __future__ import annotations

from functools import cache

import numpy as np

from mission_gym.algorithms.dqn.compiled_kernel import CompiledQKernel
from mission_gym.algorithms.dqn.facts import layout, replay_layout
from mission_gym.algorithms.dqn.kernel import Batches, QKernel, QSettings, make_settings
from mission_gym.algorithms.dqn.learner import DqnLearner
from mission_gym.algorithms.dqn.section import DqnSection, own_section
from mission_gym.algorithms.dqn.torch_kernel import TorchQKernel
from mission_gym.config.schema import Config, Settled
from mission_gym.data import EnvSpec
from mission_gym.learner.proof import draw_inputs, find_device_disagreement, find_disagreement
from mission_gym.policy import Encoded, Encoder, PolicySpec
from mission_gym.policy.q_torch import QNetwork
from mission_gym.policy.torch_form import model_arrays
from mission_gym.streams import generator, torch_seed

_ROWS = 64


def make_learner(config: Settled, spec: EnvSpec) -> DqnLearner:
    """A learner with fresh weights drawn from the run's seed and an empty replay."""
    policy, seed = layout(config, spec), config.run.seed
    drawn = torch_seed(seed, "init")
    kernel: QKernel
    if config.compute.kernel == "compiled":
        kernel = CompiledQKernel(policy, _num_flat(policy), model_arrays(QNetwork(policy, drawn)))
    else:
        kernel = TorchQKernel(policy, drawn, config.compute.device)
    replay = replay_layout(config, spec)
    return DqnLearner(
        kernel,
        policy,
        own_section(config),
        replay,
        total_steps=config.run.timesteps,
        seed=seed,
        normalize_returns=config.policy.normalize_returns,
    )


def verify_compiled_kernel(config: Config, spec: EnvSpec, threads: int) -> str:
    """Why the compiled kernel is left out: where it disagrees with the loss; empty if it does not."""
    dqn = config.algorithm
    assert isinstance(dqn, DqnSection)
    return verify_kernel(layout(config, spec), make_settings(dqn, _ROWS, 0.0), spec.mask_size)


@cache
def verify_kernel(policy: PolicySpec, settings: QSettings, mask_size: int) -> str:
    """Both start from equal weights, with another target network, and get minibatches that carry every field,
    of small values and of large ones."""
    rng = generator("proof")
    reference = TorchQKernel(policy, seed=0)
    online, target = (
        {
            name: array + rng.normal(0.0, 0.3, array.shape).astype(np.float32)
            for name, array in reference.parameters().items()
        }
        for _ in range(2)
    )
    twin = CompiledQKernel(policy, _num_flat(policy), online)
    for kernel in (reference, twin):
        kernel.load_parameters(online)
        kernel.load_target(target)
    for scale in (1.0, 100.0):
        batches = _make_batches(policy, mask_size, scale, rng, *(_draw_flat(policy, rng) for _ in range(2)))
        expected = reference.differentiate(batches, settings)
        if cause := find_disagreement(twin.differentiate(batches, settings), expected):
            return cause
    return ""


def verify_device(config: Settled, spec: EnvSpec) -> str:
    """Where the device disagrees with the CPU, or a captured step with the same step; empty if nowhere."""
    policy, rng = layout(config, spec), generator("proof")
    settings = make_settings(own_section(config), _ROWS, own_section(config).learning_rate)
    encoder = Encoder(policy.leaves, normalize=False)
    ends = (encoder.encode(draw_inputs(spec, _ROWS, rng)) for _ in range(2))
    batches = _make_batches(policy, spec.mask_size, 1.0, rng, *ends)
    reference, kernel = TorchQKernel(policy, seed=0), TorchQKernel(policy, 0, config.compute.device)
    found, expected = (each.differentiate(batches, settings) for each in (kernel, reference))

    def step() -> None:
        kernel.learn(batches, settings, lambda place: generator("proof", "noisy", place))

    return find_device_disagreement(found, expected, config.compute.precision, kernel, step)


def _make_batches(
    policy: PolicySpec,
    mask_size: int,
    scale: float,
    rng: np.random.Generator,
    inputs: Encoded,
    next_inputs: Encoded,
) -> Batches:
    """Rows with masks, ends of episodes, errors on both sides of 1, and every other field random."""
    num_actions = policy.action.num_params
    mask = None
    if mask_size:
        mask = rng.random((_ROWS, mask_size)) < 0.6
        mask[:, 0] = True
    return Batches(
        inputs=inputs,
        action=rng.integers(0, num_actions, _ROWS),
        reward=(scale * rng.normal(0.0, 2.0, _ROWS)).astype(np.float32),
        discount=(0.9 * (rng.random(_ROWS) < 0.8)).astype(np.float32),
        next_inputs=next_inputs,
        next_mask=mask,
        weight=rng.uniform(0.1, 1.0, _ROWS).astype(np.float32),
    )


def _draw_flat(policy: PolicySpec, rng: np.random.Generator) -> Encoded:
    return Encoded(rng.standard_normal((_ROWS, _num_flat(policy)), np.float32), ())


def _num_flat(policy: PolicySpec) -> int:
    return Encoder(policy.leaves, normalize=False).num_flat
