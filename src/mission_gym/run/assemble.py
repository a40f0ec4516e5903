"""From a resolved config to the compute bank: environment, vector, policy, learner.

Whatever can change a number (backend, device, threads, acting form, kernel) is settled here, before
the first update, and stored with its source. Training, evaluation and resume all build through here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any

from threadpoolctl import ThreadpoolController

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import find_unused
from mission_gym.config.schema import Config
from mission_gym.data import Block, EnvSpec, Weights
from mission_gym.errors import ConfigError
from mission_gym.learner.kernel import Kernel
from mission_gym.learner.numpy_kernel import NumpyKernel
from mission_gym.learner.ppo import PpoLearner, PpoSettings, Schedule
from mission_gym.plan.overlap import choose_overlap
from mission_gym.plan.sheet import measure_gradient_step_s
from mission_gym.plan.ways import Way, choose_way, device_exists, find_devices, list_ways, measure_ways
from mission_gym.policy import Encoder, PolicySpec, QSpec, make_numpy_policy
from mission_gym.procs import usable_cores
from mission_gym.rollout.blocks import make_block
from mission_gym.rollout.central import ReadyCollector
from mission_gym.rollout.collector import ActingPolicy, BlockCollector, Collector
from mission_gym.rollout.remote import SERVICE, RemoteCollector
from mission_gym.rollout.worker import CollectSetup, carve_shared
from mission_gym.run.assemble_dqn import Learner, find_misfits, has_analytic, make_dqn_learner
from mission_gym.run.environment import (
    Environment,
    SeedOf,
    Vector,
    choose_acting_rows,
    choose_backend,
    choose_num_workers,
    count_groups,
)
from mission_gym.streams import torch_seed
from mission_gym.vector.workers import WorkersVec

# Below this many multiply-adds forward in a minibatch, a second thread gives little or costs more than that.
# PPO's analytic kernel, measured on two cores, gain by the second: 64,64 at batch 64 1.2, at 512 1.6; 128,128
# at 64 1.35; 512,512 at 2048 1.9. torch's threads meet at every product.
_WORK_FOR_THREADS, _WORK_FOR_TORCH_THREADS = 2_500_000, 25_000_000


def make_collector(
    config: Config, environment: Environment, seed_of: SeedOf
) -> tuple[Vector, BlockCollector, list[Block]]:
    """The vector of a run, the collector that steps it and the blocks it fills: inside the workers where
    the NumPy form acts, else here."""
    spec, num_steps, num_envs = environment.spec, config.algorithm.n_steps_per_env, config.vector.n_envs
    rows = config.compute.acting_rows
    num_blocks = 2 if config.compute.overlap == "on" else 1
    assert isinstance(rows, int)
    if environment.backend in ("workers", "threads") and config.compute.acting == "numpy":
        make = partial(make_numpy_policy, policy_spec(config, spec))
        first_ready = config.vector.blocks == "first_ready"
        setup = CollectSetup(make, config.run.seed, rows, num_steps, num_blocks, first_ready)
        shared = {"extra": setup, "carve": carve_shared(spec, setup, num_envs)}
        vec = environment.make_vector(num_envs, seed_of, unit=rows, service=SERVICE, **shared)
        assert isinstance(vec, WorkersVec)
        remote = RemoteCollector(vec, spec, first_ready=first_ready)
        return vec, remote, list(remote.blocks)
    policy, seed = make_policy(config, spec), config.run.seed
    collector: BlockCollector
    if environment.backend == "workers" and rows < num_envs:
        vec = environment.make_vector(num_envs, seed_of, unit=rows, first_ready=True)
        assert isinstance(vec, WorkersVec)
        collector = ReadyCollector(vec, policy, spec, seed, rows)
    else:
        vec = environment.make_vector(num_envs, seed_of)
        collector = Collector(vec, policy, spec, seed, rows)
    blocks = [make_block(spec, num_steps, num_envs, state=collector.memory) for _ in range(num_blocks)]
    return vec, collector, blocks


def settle(resolved: Resolved, spec: EnvSpec) -> Resolved:
    """Replace every `auto` that depends on the machine or the environment; refuse explicit values that
    this run would not use."""
    if resolved.config.vector.vector == "auto":
        resolved = resolved.with_values({"vector.vector": choose_backend(resolved.config)}, "plan")
    is_mlp = policy_spec(resolved.config, spec).is_mlp
    problems = find_unused(
        resolved,
        has_vector_leaves=any(leaf.kind == "vector" for leaf in spec.leaves),
        has_box_actions=spec.action.kind == "box",
        acts_with_torch=resolved.config.compute.acting == "torch" or not is_mlp,
    )
    config = resolved.config
    if config.run.algo == "dqn":
        problems += find_misfits(config, spec, resolved.sources)
    chosen: dict[str, Any] = {}
    for name in ("acting", "kernel"):
        if config.value(f"compute.{name}") == "numpy" and not is_mlp:
            problems.append(
                f"{name}=numpy is not possible: the network is not a plain MLP; use torch or auto"
                f" [{resolved.sources[f'compute.{name}']}]"
            )
    device = config.compute.device
    if device != "auto" and not device_exists(device):
        problems.append(
            f"device={device} is not available: this torch sees no such device; use cpu or auto"
            f" [{resolved.sources['compute.device']}]"
        )
    threads = config.compute.threads
    if threads == "auto":
        analytic = is_mlp and config.run.algo == "ppo" and config.compute.kernel != "torch"
        threads = chosen["compute.threads"] = choose_threads(config, spec, analytic)
    ways = list_possible(config, is_mlp, threads)
    if not ways and not problems:
        problems.append(
            f"kernel=numpy is not possible with device={device} and precision={config.compute.precision}: it"
            f" computes in float32 on the CPU; use torch or auto [{resolved.sources['compute.kernel']}]"
        )
    if problems:
        raise ConfigError(problems)
    if config.vector.num_workers == "auto":
        chosen["vector.num_workers"] = choose_num_workers(config, config.vector.vector)
    acting = config.compute.acting
    if acting == "auto":
        acting = chosen["compute.acting"] = "numpy" if is_mlp else "torch"
    if config.compute.acting_rows == "auto":
        chosen["compute.acting_rows"] = choose_acting_rows(config.vector.n_envs, count_groups(config))
    resolved = _settle_way(resolved.with_values(chosen, "plan"), ways, spec)
    if config.compute.overlap == "auto":
        overlap = choose_overlap(resolved.config).value
        resolved = resolved.with_values({"compute.overlap": overlap}, "plan")
    return resolved


def list_possible(config: Config, is_mlp: bool, threads: int) -> list[Way]:
    """The ways to learn that the algorithm has for what the config leaves open."""
    devices = find_devices()
    if config.run.algo == "dqn":
        devices, is_mlp = dict.fromkeys(devices, False), is_mlp and has_analytic(config, threads)
    return list_ways(config.compute, is_mlp, devices)


def _settle_way(resolved: Resolved, ways: list[Way], spec: EnvSpec) -> Resolved:
    """Take the only way to learn, or the fastest of several."""

    def take(way: Way) -> Resolved:
        values = {f"compute.{name}": value for name, value in way._asdict().items()}
        open_paths = [path for path in values if resolved.config.value(path) == "auto"]
        return resolved.with_values({path: values[path] for path in open_paths}, "plan")

    def measure(way: Way) -> float:
        learner = make_learner(take(way).config, spec)
        return measure_gradient_step_s(learner, learner.encoder.num_flat, spec, spec.mask_size)

    if len(ways) == 1:
        return take(ways[0])
    return take(choose_way(measure_ways(ways, resolved.config, spec, measure)))


def one_blas_thread() -> AbstractContextManager[Any]:
    """NumPy with one thread inside the block: more only hurt the small products of acting, and bits may
    depend on them. torch has its own count."""
    libraries = ThreadpoolController().select(internal_api=["openblas", "mkl", "blis"])
    limit: AbstractContextManager[Any] = libraries.limit(limits=1)
    return limit


def choose_threads(config: Config, spec: EnvSpec, analytic: bool) -> int:
    """One thread for small networks, all usable cores for large ones."""
    widths = (64, *config.policy.network_arch)
    work = 2 * sum(a * b for a, b in pairwise(widths))
    # Convolutions make about 200 multiply-adds a byte of the picture, and a layer of 512 follows.
    work += sum(200 * leaf.size_bytes + 300_000 for leaf in spec.leaves if leaf.kind == "image")
    enough = _WORK_FOR_THREADS if analytic else _WORK_FOR_TORCH_THREADS
    return usable_cores() if work * int(config.algorithm.batch_size) >= enough else 1


def policy_spec(config: Config, spec: EnvSpec) -> PolicySpec:
    """The policy that this config asks for in this environment."""
    dqn = config.dqn
    sigma = dqn.noisy_sigma if dqn.exploration == "noisy" else None
    return PolicySpec(
        leaves=spec.leaves,
        action=spec.action,
        network_arch=config.policy.network_arch,
        activation=config.policy.activation,
        network=config.policy.network,
        normalize_obs=config.policy.normalize_obs,
        log_std_init=config.policy.log_std_init,
        q=QSpec(dqn.dueling, sigma) if config.run.algo == "dqn" else None,
    )


def make_policy(config: Config, spec: EnvSpec) -> ActingPolicy:
    """The acting form that the config names; without weights yet."""
    layout = policy_spec(config, spec)
    if config.compute.acting == "numpy" and layout.is_mlp:
        return make_numpy_policy(layout)
    from mission_gym.policy.q_torch import TorchQPolicy
    from mission_gym.policy.torch_form import TorchPolicy

    _set_up_torch(config)
    return (TorchPolicy if layout.q is None else TorchQPolicy)(layout, config.compute.device)


def _set_up_torch(config: Config) -> None:
    """What is torch's as a whole: acting and learning share the threads, and TF32 products on CUDA."""
    import torch

    torch.set_num_threads(int(config.compute.threads))
    if config.compute.device == "cuda":
        torch.set_float32_matmul_precision("high")


def make_loaded_policy(config: Config, spec: EnvSpec, weights: Weights) -> ActingPolicy:
    """The acting form with these weights."""
    policy = make_policy(config, spec)
    policy.load(weights)
    return policy


def make_learner(config: Config, spec: EnvSpec) -> Learner:
    """A learner with fresh weights drawn from the run's seed."""
    from mission_gym.learner.torch_kernel import TorchKernel
    from mission_gym.policy.torch_form import ActorCritic, model_arrays

    ppo, total, seed = config.ppo, config.run.timesteps, config.run.seed
    assert isinstance(config.compute.threads, int)
    _set_up_torch(config)
    layout = policy_spec(config, spec)
    if config.run.algo == "dqn":
        return make_dqn_learner(config, spec, layout)
    assert isinstance(ppo.batch_size, int)

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
    drawn = torch_seed(seed, "init")
    kernel: Kernel
    if config.compute.kernel == "numpy":
        # Without torch's optimizer, whose first use loads its compiler.
        initial = model_arrays(ActorCritic(layout, drawn))
        num_flat = Encoder(layout.leaves, normalize=False).num_flat
        kernel = NumpyKernel(layout, num_flat, initial, config.compute.threads)
    else:
        device, precision = config.compute.device, config.compute.precision
        kernel = TorchKernel(layout, drawn, device, precision=precision, batch_size=ppo.batch_size)
    return PpoLearner(kernel, layout, settings, config.vector.n_envs, seed)
