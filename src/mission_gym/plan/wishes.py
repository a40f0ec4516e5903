"""Between configs and the planner: what a config fixes and leaves open, and a plan's values put into it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import psutil

from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Config, Settled
from mission_gym.plan.costs import Workshop
from mission_gym.plan.facts import Layout, UpdateCost, Wishes
from mission_gym.plan.memory import count_bytes, layout_of
from mission_gym.plan.ways import Way, choose_overlap, list_possible
from mission_gym.procs import MachineFacts

_LEAST_UPDATES = 100  # of a run whose rollouts grow with its environments


def size_paths(config: Config) -> tuple[str, str]:
    """The sizes that a plan may choose."""
    return "vector.n_envs", f"{config.run.algo}.n_steps_per_env"


def apply(resolved: Resolved, values: dict[str, Any]) -> Resolved:
    """The config with a plan's values; sizes that are the same keep their source."""
    sizes = size_paths(resolved.config)
    changed = {
        path: value
        for path, value in values.items()
        if path not in sizes or resolved.config.value(path) != value
    }
    return resolved.with_values(changed, "plan")


def make_wishes(workshop: Workshop, resolved: Resolved, ruled: Settled, held: Layout | None = None) -> Wishes:
    """What this config fixes and leaves open; `ruled` is what the fixed rules make of it."""
    given, environment, algorithm = resolved.config, workshop.environment, workshop.algorithm
    spec, layout = environment.spec, layout_of(ruled, environment.backends[ruled.vector.vector])
    others = (each for each in environment.rivals if not each.for_waiting)
    backends = tuple(dict.fromkeys((layout.backend, *others)))
    envs, steps = size_paths(given)

    @cache
    def run_at_once(layout: Layout, update: UpdateCost) -> bool:
        if given.compute.overlap != "auto":
            return given.compute.overlap == "on"
        place = {"vector": layout.backend.name, "num_workers": layout.num_workers, "n_envs": layout.n_envs}
        way = {"device": update.device, "threads": update.threads}
        sizes = {"n_steps_per_env": layout.n_steps_per_env}
        if layout.batch_size is not None:
            sizes["batch_size"] = layout.batch_size
        moved: dict[str, Any] = {"vector": ruled.vector.model_copy(update=place)}
        moved |= {"compute": ruled.compute.model_copy(update=way)}
        moved |= {"algorithm": ruled.algorithm.model_copy(update=sizes)}
        return choose_overlap(ruled.model_copy(update=moved), layout.backend, algorithm).value == "on"

    return Wishes(
        layout=layout,
        backends=backends,
        held=held,
        batch_size=algorithm.fixed_batch(resolved),
        minibatch=algorithm.minibatch(ruled),
        max_rollout=max(layout.rollout, find_max_rollout(given)),
        at_once=run_at_once,
        open_envs=is_open(resolved, envs),
        open_steps=not resolved.explicit(steps),
        open_workers=given.vector.num_workers == "auto",
        trace_decay=algorithm.trace_decay(given),
        **count_bytes(ruled, spec, layout.backend),
        base_bytes=int(psutil.Process().memory_info().rss) + algorithm.held_bytes(ruled, spec),
    )


def find_max_rollout(config: Config) -> int:
    """The largest rollout that leaves a run enough updates; a power of two, so that runs of nearly as many
    steps get equal plans."""
    return 1 << max(1, config.run.timesteps // _LEAST_UPDATES).bit_length() - 1


def layout_values(layout: Layout, given: Config) -> dict[str, Any]:
    """The config values of a layout, without those that are given."""
    sizes = (layout.n_envs, layout.n_steps_per_env)
    values: dict[str, Any] = dict(zip(size_paths(given), sizes, strict=True))
    if layout.batch_size is not None:
        values[f"{given.run.algo}.batch_size"] = layout.batch_size
    if given.vector.vector == "auto":
        values["vector.vector"] = layout.backend.name
    if given.vector.num_workers == "auto":
        values["vector.num_workers"] = layout.num_workers
    return values


def list_learning(
    workshop: Workshop, given: Config, ruled: Settled, machine: MachineFacts
) -> Iterator[tuple[Way, int]]:
    """The ways to learn that are open, each with a number of threads; the fixed rules' own first."""
    own, cores, algorithm = ruled.compute, machine.usable_cores, workshop.algorithm
    first = (Way(own.device, own.kernel, own.precision), own.threads)
    yield first
    is_mlp = algorithm.layout(ruled, workshop.environment.spec).is_mlp
    wanted = given.compute.threads
    for threads in sorted({1, max(cores // 2, 1), cores}) if wanted == "auto" else [wanted]:
        for way in list_possible(given, algorithm, is_mlp, threads):
            if (way, threads) != first and (way.device == "cpu" or threads == 1 or wanted != "auto"):
                yield way, threads


def is_open(resolved: Resolved, path: str) -> bool:
    """Whether a plan is stronger than what the value comes from."""
    source = resolved.sources[path]
    return resolved.config.value(path) == "auto" or source == "default" or source.startswith("profile ")
