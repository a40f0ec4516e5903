"""What the doctor says of a Ray cluster, by what a process of its own printed."""

from __future__ import annotations

import json

from mission_gym.check.machine import judge_cluster
from mission_gym.check.packages import Attempt

NODE = {"host": "head", "num_cpus": 4}
FOUND = {
    "address": "10.0.0.1:6379",
    "nodes": [NODE, NODE | {"host": "far"}],
    "versions": {"ray": "2.60.0"},
    "costs": {
        "latency_s": 1e-3, "call_s": 5e-4, "put_s": 1e-3, "put_byte_s": 1e-9, "get_byte_s": 1e-9,
        "carry_byte_s": 8e-9,
    },
}  # fmt: skip


def judge(**changes: object) -> list[tuple[str, str, str]]:
    findings = judge_cluster(Attempt(output=json.dumps(FOUND | changes)))
    return [(each.level, each.name, each.what) for each in findings]


def test_a_working_cluster_is_reported_with_its_costs():
    assert judge() == [
        ("ok", "cluster", "the Ray cluster at 10.0.0.1:6379 has 8 CPUs for us"
         " (2 nodes: head 4, far 4; ray 2.60.0)"),
        ("ok", "messages", "a call takes 1.0 ms, 2,000 are possible per second; 1 MB is stored in 2.0 ms and"
         " sent to another node in 8.0 ms"),
    ]  # fmt: skip


def test_problems_of_a_cluster_are_reported():
    costs = FOUND["costs"]
    assert isinstance(costs, dict)
    assert judge(costs=costs | {"latency_s": 0.01})[1][0] == "warning"
    assert judge(nodes=[NODE | {"num_cpus": 0}])[0][:2] == ("error", "cluster")
    (broken,) = judge_cluster(Attempt(error="mission_gym.errors.UsageError: no Ray cluster answers at x:1"))
    assert (broken.level, broken.what) == (
        "error",
        "the Ray cluster can't be used: no Ray cluster answers at x:1",
    )
