"""From a resolved config to the compute bank: vector, collector, policy, learner, by the tables' records.

Whatever can change a number (backend, device, threads, acting form, kernel) is settled here, before
the first update, and stored with its source. Training, evaluation and resume all build through here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from threadpoolctl import ThreadpoolController

from mission_gym.algorithms import load_algorithm
from mission_gym.check.devices import device_memory
from mission_gym.config.layers import Resolved
from mission_gym.config.rules import RunFacts, apply_rules, find_unused
from mission_gym.config.schema import Config, Settled
from mission_gym.data import EnvSpec, Weights
from mission_gym.errors import ConfigError
from mission_gym.learner.contract import Algorithm, Learner
from mission_gym.plan.memory import check_memory
from mission_gym.plan.ways import (
    Way,
    choose_overlap,
    choose_threads,
    choose_way,
    device_exists,
    list_possible,
    measure_ways,
)
from mission_gym.policy import make_numpy_policy
from mission_gym.ray.run import choose_actor_workers, connect
from mission_gym.rollout.collector import ActingPolicy
from mission_gym.rollout.make import Collected, CollectRequest
from mission_gym.rollout.make import make_collector as make_run_collector
from mission_gym.run.environment import (
    Environment,
    choose_acting_rows,
    choose_backend,
    choose_num_workers,
    count_groups,
    training_seeds,
    with_backend,
)
from mission_gym.vector.backends import load_backend
from mission_gym.vector.base import SeedOf
from mission_gym.vector.record import Backend

_proved: dict[tuple[Any, ...], str] = {}  # by what a proof depends on: plans settle many configs


def algorithm_of(config: Config) -> Algorithm:
    """The record of the config's algorithm."""
    return load_algorithm(config.run.algo)


def find_misfits(resolved: Resolved, spec: EnvSpec) -> list[str]:
    """A problem for each explicit value that a run on this environment would not use, or can't have."""
    if resolved.config.vector.vector == "auto":
        resolved = resolved.with_values({"vector.vector": choose_backend(resolved.config, spec)}, "plan")
    config, sources, algorithm = resolved.config, resolved.sources, algorithm_of(resolved.config)
    is_mlp, compute = algorithm.layout(config, spec).is_mlp, config.compute
    facts = RunFacts(
        config,
        load_backend(config.vector.vector),
        has_vector_leaves=any(leaf.kind == "vector" for leaf in spec.leaves),
        has_box_actions=spec.action.num_reals > 0,
        acts_with_torch=compute.acting == "torch" or not is_mlp,
        has_sequences=any(leaf.kind == "sequence" for leaf in spec.leaves),
    )
    problems = find_unused(resolved, facts) + algorithm.refuse(resolved, spec)
    problems += [
        f"{name}={value} is not possible: the network is not a plain MLP; use torch or auto"
        f" [{sources[f'compute.{name}']}]"
        for name, value in (("acting", compute.acting), ("kernel", compute.kernel))
        if value not in ("auto", "torch") and not is_mlp
    ]
    rows, agents = compute.acting_rows, config.vector.num_agents
    if rows != "auto" and rows % agents:
        problems.append(
            f"acting_rows={rows} would divide the {agents} agents of an environment, which are acted for"
            f" together; use a multiple of {agents}, or auto [{sources['compute.acting_rows']}]"
        )
    if compute.precision == "bf16" and not algorithm.has_bf16:
        problems.append(
            f"precision=bf16 is not possible: {algorithm.name} learns in float32 alone; remove it"
            f" [{sources['compute.precision']}]"
        )
    if compute.device != "auto" and not device_exists(compute.device):
        problems.append(
            f"device={compute.device} is not available: this torch sees no such device; use cpu or auto"
            f" [{sources['compute.device']}]"
        )
    return problems


def settle(resolved: Resolved, spec: EnvSpec, step_s: float = 0.0) -> tuple[Resolved, list[str]]:
    """Replace every `auto` that depends on the machine or the environment, and say what was left out; refuse
    explicit values that this run would not use. step_s: of an environment, where it was timed."""
    if resolved.config.vector.vector == "auto":
        resolved = resolved.with_values({"vector.vector": choose_backend(resolved.config, spec)}, "plan")
    if problems := find_misfits(resolved, spec):
        raise ConfigError(problems)
    sources, algorithm = resolved.sources, algorithm_of(resolved.config)
    backend = load_backend(resolved.config.vector.vector)
    is_mlp = algorithm.layout(resolved.config, spec).is_mlp
    resolved, threads, notes = drop_false_kernel(resolved, spec)
    config, compute = resolved.config, resolved.config.compute
    ways = list_possible(config, algorithm, is_mlp, threads)
    if not ways:
        asked = f"device={compute.device} and precision={compute.precision}"
        cause = f" with {asked}: it computes in float32 on the CPU"
        if not algorithm.has_compiled_kernel(config, threads):
            cause = f": {algorithm.name} has none for this config"
        raise ConfigError(
            f"kernel=compiled is not possible{cause}; use torch or auto [{sources['compute.kernel']}]"
        )
    chosen: dict[str, Any] = {
        "compute.threads": threads,
        "vector.num_workers": choose_num_workers(config, backend),
        "compute.acting": "numpy" if is_mlp else "torch",
        "compute.acting_rows": config.vector.num_agents
        * choose_acting_rows(config.num_envs, count_groups(config, backend)),
    }
    resolved = _fill(resolved, chosen)
    if backend.needs_cluster:
        share = choose_actor_workers(resolved.config, backend, int(resolved.config.vector.num_workers))
        if share is not None and resolved.config.vector.actor_workers is None:
            resolved = resolved.with_values({"vector.actor_workers": share}, "plan")
    if len(ways) == 1:
        way = ways[0]
        _refuse_false_device(_fill(resolved, _way_values(way)), spec, algorithm)
    else:
        way = _measure_ways(resolved, ways, spec, backend, algorithm, step_s)
    resolved = _fill(resolved, _way_values(way))
    if resolved.config.compute.overlap == "auto":
        without = resolved.with_values({"compute.overlap": "off"}, "plan")
        overlap = choose_overlap(without.settled, backend, algorithm).value
        resolved = without.with_values({"compute.overlap": overlap}, "plan")
    return resolved, notes


def _fill(resolved: Resolved, values: dict[str, Any]) -> Resolved:
    """Take the values at those paths that are still `auto`."""
    left = {path: value for path, value in values.items() if resolved.config.value(path) == "auto"}
    return resolved.with_values(left, "plan") if left else resolved


def _way_values(way: Way) -> dict[str, Any]:
    return {f"compute.{name}": value for name, value in way._asdict().items()}


def _measure_ways(
    resolved: Resolved,
    ways: list[Way],
    spec: EnvSpec,
    backend: Backend,
    algorithm: Algorithm,
    step_s: float,
) -> Way:
    """The fastest of several ways to learn; ConfigError, before one is made, if memory lacks."""

    def choose(way: Way) -> Settled:
        return _fill(_fill(resolved, _way_values(way)), {"compute.overlap": "off"}).settled

    def measure(way: Way) -> float:
        config = choose(way)
        if cause := verify_device(config, spec):
            raise RuntimeError(cause)
        return algorithm.measure_update_s(make_learner(config, spec), config, spec)

    def runs_beside(way: Way) -> bool:
        if resolved.config.compute.overlap != "auto":
            return resolved.config.compute.overlap == "on"
        return choose_overlap(choose(way), backend, algorithm).value == "on"

    check_memory(choose(ways[0]), backend, spec, algorithm)
    collect_s = step_s / spec.num_agents / choose(ways[0]).vector.num_workers
    return choose_way(measure_ways(ways, resolved.config, spec, measure), collect_s, runs_beside)


def verify_device(config: Settled, spec: EnvSpec) -> str:
    """Why a device is left out: where it does not compute what the CPU does, or a captured step not what a
    step does; empty if it does. Before a device is used it proves itself."""
    if config.compute.device == "cpu":
        return ""
    own = tuple(config.algorithm.model_dump().items())
    key = (config.policy, own, config.compute.device, config.compute.precision, spec.signature)
    if key not in _proved:
        _set_up_torch(config)
        with device_memory(config):
            _proved[key] = algorithm_of(config).verify_device(config, spec)
    return _proved[key]


def _refuse_false_device(resolved: Resolved, spec: EnvSpec, algorithm: Algorithm) -> None:
    """ConfigError if the only way to learn is on a device that does not prove itself."""
    config = _fill(resolved, {"compute.overlap": "off"}).settled
    if cause := verify_device(config, spec):
        raise ConfigError(
            f"device={config.compute.device} is not possible: it does not compute the loss of"
            f" {algorithm.name}: {cause}; use cpu [{resolved.sources['compute.device']}]"
        )


def drop_false_kernel(
    resolved: Resolved, spec: EnvSpec, remedy: str = "use torch or auto"
) -> tuple[Resolved, int, list[str]]:
    """Let the compiled kernel prove itself where it may be used, and leave it out, with a note, where it does
    not compute the loss; ConfigError, with the remedy, if it was asked for. Also the learner's threads."""
    config, algorithm = resolved.config, algorithm_of(resolved.config)
    is_mlp, compute = algorithm.layout(config, spec).is_mlp, config.compute
    threads = compute.threads
    if threads == "auto":
        threads = choose_threads(config, spec, algorithm, is_mlp)
    on_cpu = compute.device in ("auto", "cpu") and compute.precision in ("auto", "float32")
    if compute.kernel == "torch" or not (
        is_mlp and on_cpu and algorithm.has_compiled_kernel(config, threads)
    ):
        return resolved, threads, []
    if not (cause := algorithm.verify_compiled_kernel(config, spec, threads)):
        return resolved, threads, []
    if resolved.explicit("compute.kernel"):
        raise ConfigError(
            f"kernel=compiled is not possible: it does not compute the loss of {algorithm.name}: {cause};"
            f" {remedy} [{resolved.sources['compute.kernel']}]"
        )
    note = f"the compiled kernel is left out, and torch trains: {cause}"
    resolved = resolved.with_values({"compute.kernel": "torch"}, f"plan: {note}")
    if compute.threads == "auto":
        threads = choose_threads(resolved.config, spec, algorithm, is_mlp)
    return resolved, threads, [note]


def one_blas_thread() -> AbstractContextManager[Any]:
    """NumPy with one thread inside the block: more only hurt the small products of acting, and bits may
    depend on them. torch has its own count."""
    libraries = ThreadpoolController().select(internal_api=["openblas", "mkl", "blis"])
    limit: AbstractContextManager[Any] = libraries.limit(limits=1)
    return limit


def make_policy(config: Settled, spec: EnvSpec, *, acting: bool = False) -> ActingPolicy:
    """The acting form that the config names; without weights yet. acting: see `device_memory`."""
    layout = algorithm_of(config).layout(config, spec)
    if config.compute.acting == "numpy" and layout.is_mlp:
        return make_numpy_policy(layout)
    from mission_gym.policy.q_torch import TorchQPolicy
    from mission_gym.policy.torch_form import TorchPolicy

    _set_up_torch(config)
    with device_memory(config, acting=acting):
        return (TorchPolicy if layout.q is None else TorchQPolicy)(layout, config.compute.device)


def make_loaded_policy(
    config: Settled, spec: EnvSpec, weights: Weights, *, acting: bool = False
) -> ActingPolicy:
    """The acting form with these weights."""
    policy = make_policy(config, spec, acting=acting)
    with device_memory(config, acting=acting):
        policy.load(weights)
    return policy


def make_learner(config: Settled, spec: EnvSpec) -> Learner:
    """A learner with fresh weights drawn from the run's seed."""
    _set_up_torch(config)
    with device_memory(config):
        return algorithm_of(config).make_learner(config, spec)


def _set_up_torch(config: Settled) -> None:
    """What is torch's as a whole: acting and learning share the threads, and TF32 products on CUDA."""
    import torch

    torch.set_num_threads(config.compute.threads)
    torch.set_float32_matmul_precision("high" if config.compute.device.startswith("cuda") else "highest")


def make_collector(config: Settled, environment: Environment, seed_of: SeedOf) -> Collected:
    """The vector of a run, the collector that steps it and the blocks it fills."""
    spec, is_portable = environment.spec, config.compute.acting == "numpy"
    layout = algorithm_of(config).layout(config, spec)
    asked = CollectRequest(
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
        cluster = source.cluster or connect(config, backend)  # the second of a run that goes on
        source = replace(source, cluster=cluster, actor_workers=config.vector.actor_workers or 1)
    return make_run_collector(backend, source, spec, seed_of, asked)


@dataclass(frozen=True)
class Assembly:
    """`plan.costs.Workshop`: builds for one environment and one algorithm."""

    environment: Environment
    algorithm: Algorithm

    def settle(self, resolved: Resolved) -> Settled:
        finished, _ = apply_rules(resolved)
        return settle(finished, self.environment.spec, self.environment.step_s)[0].settled

    def make_learner(self, config: Settled) -> Learner:
        return make_learner(config, self.environment.spec)

    def make_policy(self, config: Settled, weights: Weights) -> ActingPolicy:
        return make_loaded_policy(config, self.environment.spec, weights)

    def make_collector(self, config: Settled) -> Collected:
        seeds = training_seeds(0, {"episode_offset": 0})
        return make_collector(config, with_backend(self.environment, config), seeds)
