"""Checks the nodes of a Ray cluster and measures its messages: calls, objects, transfers between nodes."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from mission_gym.clock import time_call
from mission_gym.ray.cluster import Cluster, Node, check_versions, node_versions, open_cluster

_LARGE = 8 << 20  # bytes of the object that shows the cost per byte
_REPEATS = 5
_NUM_CALLS = 200
_START_S = 60.0


class ClusterCosts(NamedTuple):
    """The measured cost of messages on a cluster."""

    latency_s: float  # a call and its reply
    call_s: float  # the driver's time for one of many calls
    put_s: float  # storing an object, without its bytes
    put_byte_s: float
    get_byte_s: float  # copying an object out of the store
    carry_byte_s: float  # copying from the store of one node to another


class _Echo:
    """An actor that does nothing, so that only the message takes time."""

    def receive(self, value: Any = None) -> None:
        """Take an argument to the actor's node."""

    def make(self, num_bytes: int) -> Any:
        return np.zeros(num_bytes, np.uint8)


def measure_cluster(cluster: Cluster) -> ClusterCosts:
    """Measure the costs between this node and another one if there is one; takes about two seconds."""
    ray = cluster.ray
    others = [node for node in cluster.nodes() if not node.is_here]
    kind = ray.remote(num_cpus=0)(_Echo)
    near = kind.remote()
    far = kind.options(**_place_on(cluster, others[0])).remote() if others else near
    try:
        ray.get([near.receive.remote(), far.receive.remote()], timeout=_START_S)
        latency_s = _time(lambda: ray.get(far.receive.remote()), _NUM_CALLS // 4)
        start = time.perf_counter()
        ray.get([near.receive.remote() for _ in range(_NUM_CALLS)])
        call_s = (time.perf_counter() - start) / _NUM_CALLS
        small, large = np.zeros(1, np.uint8), np.zeros(_LARGE, np.uint8)
        put_s = _time(lambda: ray.put(small))
        put_byte_s = max(_time(lambda: ray.put(large)) - put_s, 0.0) / _LARGE
        get_byte_s = _time_get(ray, near) / _LARGE
        carry_byte_s = max(_time_get(ray, far) / _LARGE - get_byte_s, 0.0) if others else 0.0
    finally:
        ray.kill(near)
        if others:
            ray.kill(far)
    return ClusterCosts(latency_s, call_s, put_s, put_byte_s, get_byte_s, carry_byte_s)


def _time_get(ray: Any, actor: Any) -> float:
    """The median number of seconds to fetch an actor's object and copy it."""
    target, taken = np.empty(_LARGE, np.uint8), []
    for _ in range(_REPEATS):
        ref = actor.make.remote(_LARGE)
        ray.wait([ref], fetch_local=False)
        start = time.perf_counter()
        target[...] = ray.get(ref)
        taken.append(time.perf_counter() - start)
    return median(taken)


def _time(call: Callable[[], object], repeats: int = _REPEATS) -> float:
    """The median number of seconds of a call; the first call is not counted."""
    call()
    return median(time_call(call) for _ in range(repeats))


def _place_on(cluster: Cluster, node: Node) -> dict[str, Any]:
    """The options that place an actor or a task on a node."""
    strategies = importlib.import_module(f"{cluster.ray.__name__}.util.scheduling_strategies")
    return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node.name, soft=True)}


def describe_cluster(cluster: Cluster) -> dict[str, Any]:
    """The nodes and versions of a cluster, and the cost of its messages; UsageError for a node with other
    versions than this process."""
    ray = cluster.ray
    task = ray.remote(num_cpus=0)(node_versions)
    for node in cluster.nodes():
        versions = ray.get(task.options(**_place_on(cluster, node)).remote(), timeout=_START_S)
        check_versions(versions, node.host)
    return {
        "address": cluster.address,
        "nodes": [node._asdict() for node in cluster.nodes()],
        "versions": node_versions() | {ray.__name__: ray.__version__},
        "costs": measure_cluster(cluster)._asdict(),
    }


def main(address: str) -> None:
    """Print the description of the cluster at this address as JSON; `doctor` runs this in its own process."""
    cluster = open_cluster(address)
    document = describe_cluster(cluster)
    cluster.close()
    sys.stdout.write(json.dumps(document, allow_nan=False))
