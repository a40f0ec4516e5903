"""The Ray backend: environments on the nodes of a cluster, if they need more cores than one machine has.

Workers on each node step its shard of the environments, and the policy acts there. Workers of this machine
play evaluations. The functions for runs connect to the cluster that a config names.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from mission_gym.errors import ConfigError
from mission_gym.procs import usable_cores
from mission_gym.rollout.make import Collected, CollectRequest, make_collector
from mission_gym.vector.backends import WORKERS, make_workers
from mission_gym.vector.record import Backend, Source, split_envs

if TYPE_CHECKING:  # most modules are imported inside functions: workers start first
    from mission_gym.config.schema import Config
    from mission_gym.data import EnvSpec
    from mission_gym.ray.cluster import Cluster
    from mission_gym.ray.shard import ShiftedSeeds
    from mission_gym.rollout.remote import WorkerCollector
    from mission_gym.vector.base import SeedOf, Vector
    from mission_gym.vector.workers import WorkersVec


def make_shard(
    source: Source, spec: EnvSpec, request: CollectRequest, seeds: ShiftedSeeds
) -> tuple[WorkersVec, WorkerCollector]:
    """On a node: the workers of a shard and their collector."""
    made: Any = make_collector(WORKERS, source, spec, seeds, request)
    return made[0], made[1]


def _collect_on_cluster(source: Source, spec: EnvSpec, seed_of: SeedOf, request: CollectRequest) -> Collected:
    from mission_gym.ray.actors import ActorPool
    from mission_gym.ray.collector import ClusterCollector, ClusterVec
    from mission_gym.ray.shard import Shard

    options = source.options
    assert source.cluster is not None, "open_environment connects"
    assert options.num_workers is not None, "it is settled"
    if not request.is_portable:
        raise ConfigError(
            "the policy acts in torch, which the nodes of a cluster do not load; use an MLP, whose NumPy form"
            " acts there, or another vector [--vector, --network]"
        )
    num_actors = ceil(options.num_workers / source.actor_workers)
    shards = split_envs(request.num_envs, num_actors, request.acting_rows // spec.num_agents)
    sent = replace(source, request=None, cluster=None)
    sent = sent.with_options(log=None, on_failure=None, num_workers=source.actor_workers)
    setups: list[tuple[Any, ...]] = []
    for ids in shards:
        if not callable(source.factory):
            sent = replace(sent, factory=source.factory[ids.start : ids.stop])
        own = request._replace(num_envs=len(ids), num_blocks=1, first_column=ids.start * spec.num_agents)
        setups.append((ids.start, partial(make_shard, sent, spec, own)))
    pool = ActorPool(
        source.cluster, Shard, setups, source.actor_workers, options.limits, needs_all=not request.first_ready
    )
    vec = ClusterVec(spec, request.num_envs, seed_of, shards, pool)
    collector = ClusterCollector(vec, spec, request)
    return vec, collector, collector.blocks


def _make_vector(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **changes: Any) -> Vector:
    """The vector of evaluations, on this machine; a cluster may have more workers than it has cores."""
    num_workers = min(source.options.num_workers or usable_cores(), usable_cores())
    return make_workers(source, spec, num_envs, seed_of, **{"num_workers": num_workers} | changes)


BACKEND = replace(
    WORKERS,
    name="ray",
    make_vector=_make_vector,
    text="on the nodes of a Ray cluster",
    user_code="cluster",
    make_collector=_collect_on_cluster,
)


def connect(config: Config, backend: Backend) -> Cluster | None:
    """The cluster of a run on this backend, None if it needs none. It stays open while the result is held."""
    if not backend.needs_cluster:
        return None
    from mission_gym.env.wrapper_names import name_code
    from mission_gym.names import locate, make_importable
    from mission_gym.ray.cluster import open_cluster

    # Other machines lack the current folder, so it is uploaded if code of the environment is in it.
    make_importable()
    names = [name for name in (config.env.env_id, *name_code(config.env.wrap)) if ":" in name]
    folders = [place.folder for name in names if (place := locate(name)) is not None]
    here = os.path.realpath(os.getcwd())
    is_needed = any(os.path.realpath(folder) == here for folder in folders)
    return open_cluster(config.vector.ray_address, folder=os.getcwd() if is_needed else "")


def _find_own(backend: Backend) -> Cluster | None:
    from mission_gym.ray.cluster import find_cluster

    return find_cluster() if backend.needs_cluster else None


def leave(backend: Backend) -> None:
    """Leave the cluster of a run that has ended; a cluster that we started ends."""
    if (cluster := _find_own(backend)) is not None:
        cluster.close()


def count_cpus(backend: Backend) -> int:
    """The CPUs for the backend's workers: of this machine, or of the connected cluster."""
    cluster = _find_own(backend)
    return usable_cores() if cluster is None else cluster.count_cpus()


def choose_actor_workers(config: Config, backend: Backend, num_workers: int) -> int | None:
    """Workers per actor: as many as the smallest node has CPUs; None without a cluster."""
    cluster = _find_own(backend)
    if cluster is None or config.vector.actor_workers is not None:
        return config.vector.actor_workers
    return min([num_workers, *(node.num_cpus for node in cluster.nodes() if node.num_cpus)])
