"""Builds the parts of a run from a settled config: policy, learner, vector, collector and blocks.

Training, evaluation, resume and planning all build through this module.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from threadpoolctl import ThreadpoolController

from mission_gym.algorithms import load_algorithm
from mission_gym.check.devices import device_memory
from mission_gym.config.schema import Config, Settled
from mission_gym.data import EnvSpec, Weights
from mission_gym.learner.contract import Algorithm, Learner
from mission_gym.policy import make_numpy_policy, make_torch_policy
from mission_gym.ray.backend import connect
from mission_gym.rollout.collector import ActingPolicy
from mission_gym.rollout.make import Collected, CollectRequest
from mission_gym.rollout.make import make_collector as make_run_collector
from mission_gym.run.environment import Environment
from mission_gym.vector.base import SeedOf


def algorithm_of(config: Config) -> Algorithm:
    """The record of the config's algorithm."""
    return load_algorithm(config.run.algo)


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit NumPy to one thread: more slow down the small products of acting, and could change bits. torch
    has its own thread count."""
    libraries = ThreadpoolController().select(internal_api=["openblas", "mkl", "blis"])
    limit: AbstractContextManager[Any] = libraries.limit(limits=1)
    return limit


def set_up_torch(config: Settled) -> None:
    """Set torch's global options: the threads for acting and learning, and TF32 products on CUDA."""
    import torch

    torch.set_num_threads(config.compute.threads)
    torch.set_float32_matmul_precision("high" if config.compute.device.startswith("cuda") else "highest")


def make_policy(config: Settled, spec: EnvSpec, *, acting: bool = False) -> ActingPolicy:
    """The acting form of the config's policy, without weights. acting: see `device_memory`."""
    layout = algorithm_of(config).layout(config, spec)
    if config.compute.acting == "numpy" and layout.has_numpy_form:
        return make_numpy_policy(layout)
    set_up_torch(config)
    with device_memory(config, acting=acting):
        return make_torch_policy(layout, config.compute.device)


def make_loaded_policy(
    config: Settled, spec: EnvSpec, weights: Weights, *, acting: bool = False
) -> ActingPolicy:
    """The acting form of the config's policy, with these weights."""
    policy = make_policy(config, spec, acting=acting)
    with device_memory(config, acting=acting):
        policy.load(weights)
    return policy


def make_learner(config: Settled, spec: EnvSpec) -> Learner:
    """A learner with fresh weights, drawn from the run's seed."""
    set_up_torch(config)
    with device_memory(config):
        return algorithm_of(config).make_learner(config, spec)


def make_collector(config: Settled, environment: Environment, seed_of: SeedOf) -> Collected:
    """The vector of a run, the collector that steps it and the blocks that it fills."""
    spec, is_portable = environment.spec, config.compute.acting == "numpy"
    layout = algorithm_of(config).layout(config, spec)
    request = CollectRequest(
        num_envs=config.vector.n_envs,
        num_steps=config.algorithm.n_steps_per_env,
        num_blocks=2 if config.compute.overlap == "on" else 1,
        acting_rows=config.compute.acting_rows,
        seed=config.run.seed,
        first_ready=config.vector.blocks == "first_ready",
        make_policy=partial(make_numpy_policy, layout) if is_portable else partial(make_policy, config, spec),
        is_portable=is_portable,
    )
    backend, source = environment.backend, environment.source
    if backend.needs_cluster:
        cluster = source.cluster or connect(config, backend)  # a resumed run connects here
        source = replace(source, cluster=cluster, actor_workers=config.vector.actor_workers or 1)
    return make_run_collector(backend, source, spec, seed_of, request)
