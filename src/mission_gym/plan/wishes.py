"""Between configs and the planner: what a config fixes and leaves open, and a plan's values put into it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import psutil

from mission_gym.backends.record import Backend
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec
from mission_gym.plan.facts import Layout, Wishes
from mission_gym.plan.overlap import choose_overlap
from mission_gym.plan.sheet import count_copies, step_bytes
from mission_gym.plan.sheet_dqn import replay_bytes
from mission_gym.plan.ways import Way
from mission_gym.procs import MachineFacts, usable_cores
from mission_gym.run.assemble import list_possible, policy_spec
from mission_gym.run.environment import Environment

DEFAULT_ENVS = 8


def size_paths(config: Config) -> tuple[str, str]:
    """The sizes that a plan may choose."""
    return "vector.n_envs", f"{config.run.algo}.n_steps_per_env"


def fix_envs(resolved: Resolved) -> Resolved:
    """The config with a number of environments, where that is left to the plan."""
    if resolved.config.value("vector.n_envs") != "auto":
        return resolved
    return resolved.with_values({"vector.n_envs": DEFAULT_ENVS}, "plan")


def apply(resolved: Resolved, values: dict[str, Any]) -> Resolved:
    """The config with a plan's values; sizes that are the same keep their source."""
    sizes = size_paths(resolved.config)
    changed = {
        path: value
        for path, value in values.items()
        if path not in sizes or resolved.config.value(path) != value
    }
    return resolved.with_values(changed, "plan")


def make_wishes(
    resolved: Resolved, ruled: Config, environment: Environment, held: Layout | None = None
) -> Wishes:
    """What this config fixes and leaves open."""
    given, spec = resolved.config, environment.spec
    layout = layout_of(ruled, environment.backends[ruled.vector.vector])
    others = (each for each in environment.rivals if not each.for_waiting)
    backends = tuple(dict.fromkeys((layout.backend, *others)))
    open_workers = given.vector.num_workers == "auto"
    base_bytes = int(psutil.Process().memory_info().rss)
    batch: int | None = None
    gae_lambda, cores_at_once = 0.0, 0
    if given.run.algo == "dqn":  # its minibatches come from the replay, and what it learns from is no trace
        base_bytes += replay_bytes(ruled, spec)
        if given.compute.overlap == "auto" and ruled.compute.acting == "numpy":
            cores_at_once = usable_cores()
    else:
        gae_lambda = given.ppo.gae_lambda
        if resolved.explicit("ppo.batch_size"):
            assert isinstance(ruled.ppo.batch_size, int)
            batch = ruled.ppo.batch_size
    envs, steps = size_paths(given)
    return Wishes(
        layout=layout,
        backends=backends,
        held=held,
        batch_size=batch,
        overlapped=find_overlapped(ruled, given, environment.backends.values()),
        cores_at_once=cores_at_once,
        open_envs=is_open(resolved, envs),
        open_steps=not resolved.explicit(steps),
        open_workers=open_workers,
        gamma=given.algorithm.gamma,
        gae_lambda=gae_lambda,
        step_bytes=step_bytes(ruled, spec),
        block_copies=count_copies(ruled),
        base_bytes=base_bytes,
    )


def layout_of(config: Config, backend: Backend) -> Layout:
    """The layout of a settled config."""
    assert isinstance(config.vector.num_workers, int)
    num_steps = config.algorithm.n_steps_per_env
    return Layout(backend, config.vector.num_workers, config.vector.n_envs, num_steps)


def layout_values(layout: Layout, given: Config) -> dict[str, Any]:
    """The config values of a layout, without those that are given."""
    sizes = (layout.n_envs, layout.n_steps_per_env)
    values: dict[str, Any] = dict(zip(size_paths(given), sizes, strict=True))
    if given.vector.vector == "auto":
        values["vector.vector"] = layout.backend.name
    if given.vector.num_workers == "auto":
        values["vector.num_workers"] = layout.num_workers
    return values


def list_learning(
    given: Config, ruled: Config, spec: EnvSpec, machine: MachineFacts
) -> Iterator[tuple[Way, int]]:
    """The ways to learn that are open, each with a number of threads; the fixed rules' own first."""
    own, cores = ruled.compute, machine.usable_cores
    assert isinstance(own.threads, int)
    first = (Way(own.device, own.kernel, own.precision), own.threads)
    yield first
    is_mlp = policy_spec(ruled, spec).is_mlp
    wanted = given.compute.threads
    for threads in sorted({1, max(cores // 2, 1), cores}) if wanted == "auto" else [wanted]:
        for way in list_possible(given, is_mlp, threads):
            if (way, threads) != first and (way.device == "cpu" or threads == 1 or wanted != "auto"):
                yield way, threads


def find_overlapped(ruled: Config, given: Config, backends: Iterable[Backend]) -> frozenset[tuple[str, str]]:
    """The backends and devices with which collecting and learning run at once, however many workers there
    are; `cores_at_once` is for the rest."""
    pairs, no_spare = set(), usable_cores()
    for backend in backends:
        for device in ("cpu", "cuda", "mps"):
            vector = ruled.vector.model_copy(update={"vector": backend.name, "num_workers": no_spare})
            compute = ruled.compute.model_copy(update={"device": device})
            wanted: str = given.compute.overlap
            if wanted == "auto":
                placed = ruled.model_copy(update={"vector": vector, "compute": compute})
                wanted = choose_overlap(placed, backend).value
            if wanted == "on":
                pairs.add((backend.name, device))
    return frozenset(pairs)


def is_open(resolved: Resolved, path: str) -> bool:
    """Whether a plan is stronger than what the value comes from."""
    source = resolved.sources[path]
    return resolved.config.value(path) == "auto" or source == "default" or source.startswith("profile ")
