"""Judges what a process of its own found out about a Ray cluster. Standard library only."""

from __future__ import annotations

import json

from mission_gym.check.findings import Finding, tell
from mission_gym.check.trials import Attempt

_SLOW_S = 5e-3  # a call that takes this long costs a tenth of a segment of 50 ms


def judge_cluster(trial: Attempt) -> list[Finding]:
    """Judge the JSON that it printed: nodes, versions and the cost of messages."""
    if trial.error:
        return [tell("cluster", "broken", error=trial.error.partition("Error: ")[2] or trial.error)]
    found = json.loads(trial.output)
    costs = found["costs"]
    cpus = sum(node["num_cpus"] for node in found["nodes"])
    nodes = ", ".join(f"{node['host']} {node['num_cpus']}" for node in found["nodes"])
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    findings = [
        tell("cluster", "reached" if cpus else "empty", address=found["address"], num=len(found["nodes"]),
             cpus=cpus, nodes=nodes, versions=versions),
    ]  # fmt: skip
    slow = costs["latency_s"] > _SLOW_S
    findings.append(
        tell(
            "messages",
            "slow" if slow else "fast",
            call_ms=1e3 * costs["latency_s"],
            put_ms=1e3 * costs["put_s"] + 1e9 * costs["put_byte_s"],
            carry_ms=1e9 * costs["carry_byte_s"],
            calls=1 / costs["call_s"],
        )
    )
    return findings
