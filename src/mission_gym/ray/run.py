"""The cluster that a config asks for: connected to, and what its workers may take of it."""

from __future__ import annotations

import os

from mission_gym.config.schema import Config
from mission_gym.env.wrapper_names import name_code
from mission_gym.names import locate
from mission_gym.procs import usable_cores
from mission_gym.ray.cluster import Cluster, find_cluster, open_cluster
from mission_gym.vector.record import Backend


def connect(config: Config, backend: Backend) -> Cluster | None:
    """The cluster of a run on this backend, None where it needs none; it is there as long as this is held."""
    if not backend.needs_cluster:
        return None
    folder = os.getcwd() if _lies_here(config) else ""
    return open_cluster(config.vector.ray_address, folder=folder)


def leave(backend: Backend) -> None:
    """Leave the cluster of a run that has ended; one that we started ends with it."""
    cluster = find_cluster() if backend.needs_cluster else None
    if cluster is not None:
        cluster.close()


def count_cpus(backend: Backend) -> int:
    """What the backend's workers may take: this machine's cores, or those of the cluster that we are
    connected to."""
    cluster = find_cluster() if backend.needs_cluster else None
    return usable_cores() if cluster is None else cluster.count_cpus()


def choose_actor_workers(config: Config, backend: Backend, num_workers: int) -> int | None:
    """Workers of an actor: as many as every node has CPUs for; None without a cluster."""
    cluster = find_cluster() if backend.needs_cluster else None
    if cluster is None or config.vector.actor_workers is not None:
        return config.vector.actor_workers
    lent = [node.num_cpus for node in cluster.nodes() if node.num_cpus]
    return min([num_workers, *lent])


def _lies_here(config: Config) -> bool:
    """Whether code that the environment is made from lies in the current folder: other machines lack it."""
    names = [name for name in (config.env.env_id, *name_code(config.env.wrap)) if ":" in name]
    here = os.path.realpath(os.getcwd())
    places = [place for name in names if (place := locate(name)) is not None]
    return any(os.path.realpath(place.folder) == here for place in places)
