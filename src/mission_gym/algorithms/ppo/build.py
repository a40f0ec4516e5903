"""PPO's learner for a config, and the verification of its compiled kernel and of devices against `loss`."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from mission_gym.algorithms.ppo.algorithm import Ppo
from mission_gym.algorithms.ppo.compiled_kernel import CompiledKernel
from mission_gym.algorithms.ppo.kernel import Kernel, Samples
from mission_gym.algorithms.ppo.learner import PpoLearner
from mission_gym.algorithms.ppo.section import LOG_RATIO_LIMIT, PpoSection, StepSettings, own_section
from mission_gym.algorithms.ppo.torch_kernel import TorchKernel
from mission_gym.config.schema import Config, Settled
from mission_gym.data import Array, EnvSpec
from mission_gym.learner.blocks import SequenceMemory, draw_chunks, unstack_frames
from mission_gym.learner.verify import draw_inputs, find_device_disagreement, find_disagreement
from mission_gym.policy import Encoded, Encoder, PolicySpec
from mission_gym.policy.sampling import draw_random
from mission_gym.policy.torch_forms import ActorCritic, model_arrays
from mission_gym.streams import generator, torch_seed

_ROWS, _TAILS = 64, 2  # of a minibatch, and its outliers
_COLUMNS = 4  # of a minibatch with memory


def make_learner(config: Settled, spec: EnvSpec) -> PpoLearner:
    """A learner with initial weights drawn from the run's seed."""
    policy, compute, seed = Ppo().layout(config, spec), config.compute, config.run.seed
    drawn, section = torch_seed(seed, "init"), own_section(config)
    kernel: Kernel
    if compute.kernel == "compiled":
        kernel = CompiledKernel(policy, model_arrays(ActorCritic(policy, drawn)), compute.threads)
    else:
        kernel = TorchKernel(
            policy, drawn, compute.device, precision=compute.precision, batch_size=section.batch_size
        )
    return PpoLearner(
        kernel,
        policy,
        section,
        total_steps=config.run.timesteps,
        seed=seed,
        normalize_returns=config.policy.normalize_returns,
    )


def verify_compiled_kernel(config: Config, spec: EnvSpec, threads: int) -> str:
    """Where the compiled kernel disagrees with the loss; empty if nowhere."""
    section = config.algorithm
    assert isinstance(section, PpoSection)
    settings = section.step_settings(0, config.run.timesteps)
    return verify_kernel(Ppo().layout(config, spec), settings, threads, spec.mask_size)


@cache
def verify_kernel(policy: PolicySpec, settings: StepSettings, threads: int, mask_size: int) -> str:
    """Both kernels start from equal weights and get minibatches in which every field matters: with the run's
    settings, and with every term of the loss at full weight."""
    rng, num_flat = generator("proof"), policy.num_flat
    reference = TorchKernel(policy, seed=None)
    arrays = {name: _draw(name, array, policy, rng) for name, array in reference.parameters().items()}
    reference.load_parameters(arrays)
    compiled = CompiledKernel(policy, arrays, threads)
    for case in _CASES:
        inputs = Encoded(rng.standard_normal((_ROWS, num_flat), np.float32), ())
        samples = _make_samples(case, policy, inputs, mask_size, reference, rng)
        for numbers in (settings, settings._replace(ent_coef=1.0, vf_coef=1.0)):
            expected = reference.differentiate(samples, numbers)
            if cause := find_disagreement(compiled.differentiate(samples, numbers), expected):
                return cause
    return ""


def verify_device(config: Settled, spec: EnvSpec) -> str:
    """Where the device disagrees with the CPU, or a captured step with the same step; empty if nowhere."""
    policy, compute = Ppo().layout(config, spec), config.compute
    settings = own_section(config).step_settings(0, config.run.timesteps)
    encoder = Encoder(policy.leaves, normalize=False, critic_leaves=policy.critic_leaves)
    rng = generator("proof")
    memory = _draw_memory(policy, rng) if policy.has_memory else None
    num_rows = _ROWS if memory is None else memory.starts.size
    inputs = encoder.encode(*unstack_frames(draw_inputs(spec, num_rows, rng), spec.leaves))
    reference = TorchKernel(policy, seed=0)
    samples = _make_samples(_CASES[0], policy, inputs, spec.mask_size, reference, rng, memory)
    kernel = TorchKernel(policy, None, compute.device, precision=compute.precision, batch_size=_ROWS // 2)
    kernel.load_parameters(reference.parameters())
    found, expected = (each.differentiate(samples, settings) for each in (kernel, reference))
    order = np.arange(_ROWS).reshape(2, -1)
    if memory is not None:
        order = draw_chunks(rng, np.ones(memory.starts[:-1].shape, bool), memory.chunk, _ROWS // 2)

    def step() -> None:
        kernel.load_samples(samples)
        kernel.epoch(order, settings, lambda: False)

    return find_device_disagreement(found, expected, compute.precision, kernel, step)


class _Case(NamedTuple):
    """The spread of a minibatch's ratios and targets."""

    log_ratio: float  # at most
    advantage: float  # standard deviation
    tails: float  # distance of the outliers, in standard deviations


_CASES = (
    _Case(1.1, 3.0, 1.0),
    _Case(5.0, 3.0, 30.0),
    _Case(1.1, 1e-6, 1.0),
    _Case(5.0 * LOG_RATIO_LIMIT, 3.0, 1.0),  # beyond the limit, and beyond the range of exp
)


def _draw(name: str, array: Array, policy: PolicySpec, rng: np.random.Generator) -> Array:
    """Weights that preserve the scale of their inputs."""
    middle = policy.log_std_init if name == "log_std" else 0.0
    scale = 1.0 / np.sqrt(array.shape[1]) if array.ndim == 2 else 0.1
    return rng.normal(middle, scale, array.shape).astype(np.float32)


def _draw_memory(policy: PolicySpec, rng: np.random.Generator) -> SequenceMemory:
    """One chunk of every column, with memory before it and episodes that start inside."""
    num_steps, num_columns = _ROWS // _COLUMNS, _COLUMNS
    states = [rng.standard_normal((num_columns, *shape), np.float32) for shape in policy.state_shapes]
    nothing = tuple(state[:0] for state in states)
    starts = rng.random((num_steps + 1, num_columns)) < 0.1
    return SequenceMemory(tuple(states), starts, nothing, num_steps)


def _make_samples(
    case: _Case,
    policy: PolicySpec,
    inputs: Encoded,
    mask_size: int,
    reference: TorchKernel,
    rng: np.random.Generator,
    memory: SequenceMemory | None = None,
) -> Samples:
    """Rows with masks, zero weights, and every other field random."""

    def normal(scale: float) -> Array:
        drawn = rng.standard_normal(_ROWS)
        drawn[:_TAILS] = case.tails * np.sign(drawn[:_TAILS])
        return (scale * drawn).astype(np.float32)

    mask = None
    if mask_size:
        mask = rng.random((_ROWS, mask_size)) < 0.6
        mask[:, np.cumsum((0, *policy.action.nvec[:-1]))] = True  # every part has a legal entry
    action = draw_random(policy.action, mask, rng, _ROWS)
    if num_reals := policy.action.num_reals:
        # Sampled by the policy: far from its mean, float32 is too coarse.
        noise = rng.standard_normal((_ROWS, num_reals), np.float32)
        action[:, -num_reals:] = reference.sample(inputs, noise, memory)
    log_prob, _ = reference.evaluate(inputs, action, mask, memory)
    weight = (rng.random(_ROWS) < 0.9).astype(np.float32)
    importance = rng.uniform(0.2, 1.0, _ROWS).astype(np.float32)
    weight[:_TAILS] = importance[:_TAILS] = 1.0
    return Samples(
        inputs=inputs,
        mask=mask,
        action=action,
        log_prob=log_prob - rng.uniform(-case.log_ratio, case.log_ratio, _ROWS).astype(np.float32),
        advantage=normal(case.advantage),
        returns=normal(1.0),
        value=normal(1.0),
        weight=weight,
        importance=importance,
        memory=memory,
    )
