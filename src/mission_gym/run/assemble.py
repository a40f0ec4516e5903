"""From a resolved config to the compute bank: environment, vector, policy, learner.

Whatever can change a number (backend, device, threads, acting form, kernel) is settled here, before
the first update, and stored with its source. Training, evaluation and resume all build through here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from threadpoolctl import ThreadpoolController

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import find_unused
from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec, Weights
from mission_gym.env.factory import EnvRequest, Factory, make_factory, make_vector_factory
from mission_gym.env.probe import probe, probe_vector
from mission_gym.errors import ConfigError, UsageError
from mission_gym.learner.kernel import Kernel
from mission_gym.learner.numpy_kernel import NumpyKernel
from mission_gym.learner.ppo import PpoLearner, PpoSettings, Schedule
from mission_gym.policy import Encoder, NumpyPolicy, PolicySpec
from mission_gym.rollout.collector import ActingPolicy
from mission_gym.streams import episode_seed, torch_seed
from mission_gym.vector.batched import BatchedVec
from mission_gym.vector.serial import SerialVec

# Below this many multiply-adds in a gradient step, a second thread costs more than it gives (measured:
# 64,64 at batch 512 is slower with two threads, 512,512 at batch 2048 is 1.8 times faster).
_WORK_FOR_THREADS = 50_000_000

SeedOf = Callable[[int, int], int | None]
Vector = SerialVec | BatchedVec
EnvSource = Callable[..., Any] | None  # a callable of the user's that can't be imported


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that was looked at, and how to build vectors of it."""

    spec: EnvSpec
    request: EnvRequest
    factory: Factory
    backend: str  # serial or batched

    def make_vector(self, num_envs: int, seed_of: SeedOf) -> Vector:
        if self.backend == "batched":
            return BatchedVec(make_vector_factory(self.request)(num_envs), self.spec, seed_of)
        return SerialVec(self.factory, self.spec, num_envs, seed_of)


def open_environment(config: Config, kwargs: dict[str, Any], source: EnvSource = None) -> Environment:
    """Build one environment, read its spec and close it. `kwargs` are those of the config, with files
    replaced by the run's own copies."""
    request = EnvRequest(config.env.env_id, kwargs, config.env.wrap)
    backend = "batched" if config.vector.vector == "batched" else "serial"
    if source is not None:
        if backend == "batched":
            raise UsageError(
                "a callable environment can't be batched; give module:callable [--vector batched]"
            )
        factory = make_factory(lambda: source(**kwargs))
    else:
        factory = make_factory(request)
    if backend == "batched":
        spec = probe_vector(make_vector_factory(request), config.env.env_id)
    else:
        spec = probe(factory, config.env.env_id)
    return Environment(spec, request, factory, backend)


def settle(resolved: Resolved, spec: EnvSpec) -> Resolved:
    """Replace every `auto` that depends on the machine or the environment; refuse explicit values that
    this run would not use."""
    problems = find_unused(
        resolved,
        has_vector_leaves=any(leaf.kind == "vector" for leaf in spec.leaves),
        has_box_actions=spec.action.kind == "box",
    )
    config = resolved.config
    chosen: dict[str, Any] = {}
    is_mlp = policy_spec(config, spec).is_mlp
    for name in ("acting", "kernel"):
        if config.value(f"compute.{name}") == "numpy" and not is_mlp:
            problems.append(
                f"{name}=numpy is not possible: the network is not a plain MLP; use torch or auto"
                f" [{resolved.sources[f'compute.{name}']}]"
            )
    device = config.compute.device
    if device == "auto":
        device = chosen["compute.device"] = "cpu"
    elif not _device_exists(device):
        problems.append(
            f"device={device} is not available: this torch sees no such device; use cpu or auto"
            f" [{resolved.sources['compute.device']}]"
        )
    if problems:
        raise ConfigError(problems)
    if config.vector.vector == "auto":
        chosen["vector.vector"] = "serial"
    if config.compute.acting == "auto":
        chosen["compute.acting"] = "numpy" if is_mlp else "torch"
    threads = config.compute.threads
    if threads == "auto":
        threads = chosen["compute.threads"] = choose_threads(config, spec)
    if config.compute.kernel == "auto":
        # With one thread the analytic kernel is faster at every width; more threads are torch's strength.
        chosen["compute.kernel"] = "numpy" if is_mlp and device == "cpu" and threads == 1 else "torch"
    return resolved.with_values(chosen, "plan")


def _device_exists(device: str) -> bool:
    import torch

    if device == "cuda":
        return torch.cuda.is_available()
    if device == "mps":
        return torch.backends.mps.is_available()
    return True


def one_blas_thread() -> AbstractContextManager[Any]:
    """NumPy with one thread inside the block: more only hurt the small products of acting, and bits may
    depend on them. torch has its own count."""
    return ThreadpoolController().select(internal_api=["openblas", "mkl", "blis"]).limit(limits=1)


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(config: Config, spec: EnvSpec) -> int:
    """One thread for small networks, all usable cores for large ones and for images."""
    batch = config.ppo.batch_size
    assert isinstance(batch, int)
    widths = (64, *config.policy.network_arch)
    work = batch * sum(a * b for a, b in pairwise(widths)) * 2
    large = work >= _WORK_FOR_THREADS or policy_spec(config, spec).has_images
    return usable_cores() if large else 1


def policy_spec(config: Config, spec: EnvSpec) -> PolicySpec:
    """The policy that this config asks for in this environment."""
    return PolicySpec(
        leaves=spec.leaves,
        action=spec.action,
        network_arch=config.policy.network_arch,
        activation=config.policy.activation,
        network=config.policy.network,
        normalize_obs=config.policy.normalize_obs,
        log_std_init=config.policy.log_std_init,
    )


def make_policy(config: Config, spec: EnvSpec) -> ActingPolicy:
    """The acting form that the config names; without weights yet."""
    layout = policy_spec(config, spec)
    if config.compute.acting == "numpy" and layout.is_mlp:
        return NumpyPolicy(layout)
    from mission_gym.policy.torch_form import TorchPolicy

    return TorchPolicy(layout, config.compute.device)


def make_loaded_policy(config: Config, spec: EnvSpec, weights: Weights) -> ActingPolicy:
    """The acting form with these weights."""
    policy = make_policy(config, spec)
    policy.load(weights)
    return policy


def make_learner(config: Config, spec: EnvSpec) -> PpoLearner:
    """A learner with fresh weights drawn from the run's seed."""
    import torch

    from mission_gym.learner.torch_kernel import TorchKernel

    ppo, total, seed = config.ppo, config.run.timesteps, config.run.seed
    assert isinstance(ppo.batch_size, int)
    assert isinstance(config.compute.threads, int)
    torch.set_num_threads(config.compute.threads)
    layout = policy_spec(config, spec)

    def schedule(start: float, end: float | None) -> Schedule:
        return Schedule(start, start if end is None else end, total)

    settings = PpoSettings(
        batch_size=ppo.batch_size,
        n_epochs=ppo.n_epochs,
        gamma=ppo.gamma,
        gae_lambda=ppo.gae_lambda,
        learning_rate=schedule(ppo.learning_rate, ppo.learning_rate_final),
        clip_range=schedule(ppo.clip_range, ppo.clip_range_final),
        ent_coef=schedule(ppo.ent_coef, ppo.ent_coef_final),
        vf_coef=ppo.vf_coef,
        max_grad_norm=ppo.max_grad_norm,
        target_kl=ppo.target_kl,
        normalize_advantage=ppo.normalize_advantage,
        normalize_returns=config.policy.normalize_returns,
    )
    kernel: Kernel = TorchKernel(layout, torch_seed(seed, "init"), config.compute.device)
    if config.compute.kernel == "numpy":
        kernel = NumpyKernel(layout, Encoder(layout.leaves, normalize=False).num_flat, kernel.parameters())
    return PpoLearner(kernel, layout, settings, config.vector.n_envs, seed)


def training_seeds(seed: int) -> SeedOf:
    """Every episode of every environment has its own seed, in the training range."""
    return lambda env_id, episode: episode_seed(seed, "train", env_id, episode)
