"""Environments on the nodes of a Ray cluster: for those that need more cores than a machine has.

Each node's share of them is stepped by workers there, and the policy acts beside them. Evaluations are played
by workers of this machine.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from mission_gym.errors import ConfigError
from mission_gym.procs import usable_cores
from mission_gym.rollout.make import Collected, CollectRequest, make_collector
from mission_gym.vector import SERVICE
from mission_gym.vector.backends import WORKERS, make_workers, probe_in_child
from mission_gym.vector.record import Backend, Source

if TYPE_CHECKING:  # what loads NumPy or Gymnasium is imported where it is used: workers start before
    from mission_gym.data import EnvSpec
    from mission_gym.ray.share import ShiftedSeeds
    from mission_gym.rollout.remote import RemoteCollector
    from mission_gym.vector.base import SeedOf, Vector
    from mission_gym.vector.workers import WorkersVec


def make_share(
    source: Source, spec: EnvSpec, asked: CollectRequest, seeds: ShiftedSeeds
) -> tuple[WorkersVec, RemoteCollector]:
    """On a node: the workers of a share and their collector."""
    made: Any = make_collector(WORKERS, source, spec, seeds, asked)
    return made[0], made[1]


def _collect_on_cluster(source: Source, spec: EnvSpec, seed_of: SeedOf, asked: CollectRequest) -> Collected:
    from mission_gym.ray.actors import ActorPool
    from mission_gym.ray.collector import ClusterCollector
    from mission_gym.ray.share import Share
    from mission_gym.ray.vector import ClusterVec
    from mission_gym.vector.rows import split_rows

    assert source.cluster is not None, "open_environment connects"
    assert source.num_workers is not None, "it is settled"
    if not asked.is_portable:
        raise ConfigError(
            "the policy acts in torch, which the nodes of a cluster do not load; use an MLP, whose NumPy form"
            " acts there, or another vector [--vector, --network]"
        )
    unit = asked.acting_rows // spec.num_agents
    shares = split_rows(asked.num_envs, ceil(source.num_workers / source.actor_workers), unit)
    sent = replace(source, request=None, cluster=None, log=None, num_workers=source.actor_workers)
    setups: list[tuple[Any, ...]] = []
    for ids in shares:
        mine = sent
        if not callable(source.factory):
            mine = replace(sent, factory=source.factory[ids[0] : ids[-1] + 1])
        part = asked._replace(num_envs=len(ids), num_blocks=1, first_row=ids[0] * spec.num_agents)
        setups.append((ids[0], partial(make_share, mine, spec, part)))
    crew = ActorPool(
        source.cluster, Share, setups, source.actor_workers, source.limits, needs_all=not asked.first_ready
    )
    vec = ClusterVec(spec, asked.num_envs, seed_of, shares, crew)
    state = asked.make_policy().initial_state(vec.num_rows)
    collector = ClusterCollector(
        vec, spec, asked.num_steps, asked.num_blocks, state, first_ready=asked.first_ready
    )
    return vec, collector, collector.blocks


def _make_vector(source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **options: Any) -> Vector:
    """For evaluations, of workers here; a cluster may have more of them than this machine has cores."""
    num_workers = min(source.num_workers or usable_cores(), usable_cores())
    return make_workers(replace(source, num_workers=num_workers), spec, num_envs, seed_of, **options)


BACKEND = Backend(
    "ray",
    probe_in_child,
    _make_vector,
    "on the nodes of a Ray cluster",
    user_code="cluster",
    processes=None,
    acts_itself=True,
    make_collector=_collect_on_cluster,
    service=SERVICE,
)
