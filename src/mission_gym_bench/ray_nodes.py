"""Ray clusters of several nodes on this machine, for tests with nodes that join and leave."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mission_gym.ray import cluster as clusters

_FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 2,
    "worker_niceness": 0,
}


SMALL = {"object_store_memory": 150 << 20}
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def ray_nodes(*cpus: int) -> Iterator[Any]:
    """Open a cluster with a token. cpus: of the head node, then one number per further node."""
    ray = clusters.load_ray()
    from ray.cluster_utils import Cluster

    before = {name: os.environ.get(name) for name in _TOKEN}
    os.environ |= _TOKEN
    clusters.read_token(ray)
    head = {"num_cpus": cpus[0], "_system_config": dict(_FAST), "include_dashboard": False}
    made = Cluster(True, head_node_args=head | SMALL)
    try:
        for number in cpus[1:]:
            made.add_node(num_cpus=number, **SMALL)
        yield made
    finally:
        running = clusters.find_cluster()
        if running is not None:
            running.close()
        made.shutdown()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        clusters.read_token(ray)
