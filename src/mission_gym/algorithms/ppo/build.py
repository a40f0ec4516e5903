"""PPO's learner for a config, and the proof that its compiled kernel computes `loss`."""

from __future__ import annotations

import numpy as np

from mission_gym.algorithms.ppo.compiled_kernel import CompiledKernel
from mission_gym.algorithms.ppo.facts import layout
from mission_gym.algorithms.ppo.kernel import Kernel, Samples
from mission_gym.algorithms.ppo.learner import PpoLearner
from mission_gym.algorithms.ppo.section import own_section
from mission_gym.algorithms.ppo.torch_kernel import TorchKernel
from mission_gym.config.schema import Settled
from mission_gym.data import Array, EnvSpec
from mission_gym.learner.proof import find_disagreement
from mission_gym.policy import Encoded, Encoder, PolicySpec
from mission_gym.policy.sampling import draw_random
from mission_gym.policy.torch_form import ActorCritic, model_arrays
from mission_gym.streams import generator, torch_seed

_ROWS = 64


def make_learner(config: Settled, spec: EnvSpec) -> PpoLearner:
    """A learner with fresh weights drawn from the run's seed."""
    policy, compute, seed = layout(config, spec), config.compute, config.run.seed
    drawn, section = torch_seed(seed, "init"), own_section(config)
    kernel: Kernel
    if compute.kernel == "compiled":
        num_flat = Encoder(policy.leaves, normalize=False).num_flat
        kernel = CompiledKernel(policy, num_flat, model_arrays(ActorCritic(policy, drawn)), compute.threads)
    else:
        kernel = TorchKernel(
            policy, drawn, compute.device, precision=compute.precision, batch_size=section.batch_size
        )
    return PpoLearner(
        kernel,
        policy,
        section,
        total_steps=config.run.timesteps,
        num_envs=config.vector.n_envs,
        seed=seed,
        normalize_returns=config.policy.normalize_returns,
    )


def prove(config: Settled, spec: EnvSpec) -> str:
    """Why the compiled kernel is left out: where it disagrees with the loss; empty if it does not.

    Both start from equal weights, away from their fresh draw, and get one minibatch that carries every field.
    """
    policy, rng = layout(config, spec), generator("proof")
    reference = TorchKernel(policy, seed=0)
    arrays = {
        name: array + rng.normal(0.0, 0.1, array.shape).astype(np.float32)
        for name, array in reference.parameters().items()
    }
    reference.load_parameters(arrays)
    num_flat = Encoder(policy.leaves, normalize=False).num_flat
    twin = CompiledKernel(policy, num_flat, arrays, config.compute.threads)
    samples = _make_samples(policy, num_flat, spec.mask_size, reference, rng)
    settings = own_section(config).step_settings(0, config.run.timesteps)
    expected = reference.differentiate(samples, settings)
    return find_disagreement(twin.differentiate(samples, settings), expected)


def _make_samples(
    policy: PolicySpec, num_flat: int, mask_size: int, reference: Kernel, rng: np.random.Generator
) -> Samples:
    """Rows with ratios from 0.3 to 3, masks, zero weights, and every other field random."""

    def normal(scale: float) -> Array:
        return rng.normal(0.0, scale, _ROWS).astype(np.float32)

    inputs = Encoded(rng.standard_normal((_ROWS, num_flat), np.float32), ())
    mask = None
    if mask_size:
        mask = rng.random((_ROWS, mask_size)) < 0.6
        mask[:, np.cumsum((0, *policy.action.nvec[:-1]))] = True  # something is legal in every part
    action = draw_random(policy.action, mask, rng, _ROWS)
    log_prob, _ = reference.evaluate(inputs, action, mask)
    ratio = np.exp(rng.uniform(np.log(0.3), np.log(3.0), _ROWS)).astype(np.float32)
    return Samples(
        inputs=inputs,
        mask=mask,
        action=action,
        log_prob=log_prob - np.log(ratio),
        advantage=normal(3.0),
        returns=normal(1.0),
        value=normal(1.0),
        weight=(rng.random(_ROWS) < 0.9).astype(np.float32),
        importance=rng.uniform(0.2, 1.0, _ROWS).astype(np.float32),
    )
