"""Measures what messages cost on a Ray cluster: calls, stored objects, and what goes between nodes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from mission_gym.ray.cluster import Cluster, Node, check_versions, node_versions, open_cluster
from mission_gym.ray.rates import ClusterCosts, Work, find_knee, list_sizes, predict_rate

MOST_ACTORS = 1000  # of a prediction
# What the doctor predicts for: 8 environments of 1 ms a step in one worker of each actor, a small network.
_EXAMPLE = Work(1, 8, 128, 1e-3, 64, 40_000, 20e-6)
_LARGE = 8 << 20  # bytes, of which the cost of a byte is told
_REPEATS = 5
_NUM_CALLS = 200
_START_S = 60.0


class _Echo:
    """An actor that does nothing: what is left is the message."""

    def nothing(self, given: Any = None) -> None:
        """Take something, which is then on its node."""

    def make(self, num_bytes: int) -> Any:
        return np.zeros(num_bytes, np.uint8)


def measure_cluster(cluster: Cluster) -> ClusterCosts:
    """The costs of a cluster, between this node and another one where there is another; about two seconds."""
    ray = cluster.ray
    there = [node for node in cluster.nodes() if not node.is_here]
    kind = ray.remote(num_cpus=0)(_Echo)
    far = kind.options(**_stay(cluster, there[0])).remote() if there else None
    near = kind.remote()
    try:
        ray.get([each.nothing.remote() for each in (near, far) if each is not None], timeout=_START_S)
        latency_s = _time(lambda: ray.get((far or near).nothing.remote()), _NUM_CALLS // 4)
        begun = time.perf_counter()
        ray.get([near.nothing.remote() for _ in range(_NUM_CALLS)])
        call_s = (time.perf_counter() - begun) / _NUM_CALLS
        small, large = np.zeros(1, np.uint8), np.zeros(_LARGE, np.uint8)
        put_s = _time(lambda: ray.put(small))
        put_byte_s = max(_time(lambda: ray.put(large)) - put_s, 0.0) / _LARGE
        into = np.empty(_LARGE, np.uint8)
        get_byte_s = _time_gets(ray, near, into) / _LARGE
        carry_byte_s = max(_time_gets(ray, far, into) / _LARGE - get_byte_s, 0.0) if far else 0.0
    finally:
        for each in (near, far):
            if each is not None:
                ray.kill(each)
    return ClusterCosts(latency_s, call_s, put_s, put_byte_s, get_byte_s, carry_byte_s)


def _time_gets(ray: Any, actor: Any, into: Any) -> float:
    """Seconds to take an actor's object and copy it, the median."""
    taken = []
    for _ in range(_REPEATS):
        ref = actor.make.remote(_LARGE)
        ray.wait([ref], fetch_local=False)
        begun = time.perf_counter()
        into[...] = ray.get(ref)
        taken.append(time.perf_counter() - begun)
    return median(taken)


def _stay(cluster: Cluster, node: Node) -> dict[str, Any]:
    """The options of an actor that is to be on a node."""
    from importlib import import_module

    strategies = import_module(f"{cluster.ray.__name__}.util.scheduling_strategies")
    return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node.name, soft=True)}


def _time(call: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Seconds of a call, the median of some; the first one is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return median(taken)


def describe_cluster(cluster: Cluster, costs: ClusterCosts, work: Work) -> dict[str, Any]:
    """What a cluster has, what messages cost on it, and what so many actors would make of this work."""
    predictions = [predict_rate(costs, work, number) for number in list_sizes(MOST_ACTORS)]
    return {
        "address": cluster.address,
        "nodes": [node._asdict() for node in cluster.nodes()],
        "versions": node_versions() | {cluster.ray.__name__: cluster.ray.__version__},
        "costs": costs._asdict(),
        "work": work._asdict(),
        "predictions": [asdict(each) for each in predictions],
        "knee": asdict(find_knee(predictions)),
    }


def main(address: str) -> None:
    """What the doctor runs in a process of its own: a JSON line about the cluster at this address, for steps
    of a millisecond."""
    cluster = open_cluster(address)
    check_nodes(cluster)
    document = describe_cluster(cluster, measure_cluster(cluster), _EXAMPLE)
    cluster.close()
    sys.stdout.write(json.dumps(document, allow_nan=False))


def check_nodes(cluster: Cluster) -> None:
    """UsageError for a node with other versions than ours."""
    ray = cluster.ray
    task = ray.remote(num_cpus=0)(node_versions)
    for node in cluster.nodes():
        check_versions(ray.get(task.options(**_stay(cluster, node)).remote(), timeout=_START_S), node.host)
