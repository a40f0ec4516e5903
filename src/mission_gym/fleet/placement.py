"""Which jobs start now on which node of a cluster: dealt over the nodes, then packed inside each as here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mission_gym.fleet.schedule import Capacity, Decision, Facts, Running, Waiting, plan_starts
from mission_gym.ray.cluster import Node


def plan_placements(
    waiting: Sequence[Waiting], running: Mapping[str, Sequence[Running]], nodes: Sequence[Node], now: float
) -> Decision:
    """Deal jobs, by priority, each to the node where it gets most cores. running: by the names of nodes. Of a
    node's memory is known what it lends; nothing is measured there; a job on a GPU has it alone."""
    if not nodes:
        return Decision(reason="the cluster has no nodes")
    due = sorted((job for job in waiting if job.not_before <= now), key=lambda job: -job.priority)
    cores = {
        node.name: node.num_cpus - sum(job.cores for job in running.get(node.name, ())) for node in nodes
    }
    gpus = {
        node.name: node.num_gpus - sum(job.uses_gpu for job in running.get(node.name, ())) for node in nodes
    }
    free = dict(cores)
    dealt: dict[str, list[Waiting]] = {node.name: [] for node in nodes}
    reason = "a retry waits" if waiting and not due else ""
    for job in due:
        able = [node for node in nodes if node.num_gpus or not job.uses_gpu]
        if not able:
            reason = "no node of the cluster lends a GPU"
            break
        asked = min(job.cores, max(node.num_cpus for node in able))
        names = [node.name for node in able if free[node.name] >= max(asked, 1)]
        names = [name for name in names if gpus[name] > 0 or not job.uses_gpu]
        if not names:
            what = "GPUs" if job.uses_gpu and not any(gpus[node.name] > 0 for node in able) else "CPUs"
            reason = f"the {what} of the cluster are in use"
            break
        best = max(names, key=lambda name: cores[name] / (1 + len(dealt[name])))
        dealt[best].append(replace(job, cores=asked, uses_gpu=False))
        free[best] -= asked
        gpus[best] -= job.uses_gpu
    starts = []
    for node in nodes:
        alike = [replace(job, uses_gpu=False) for job in running.get(node.name, ())]
        capacity = Capacity(node.num_cpus, node.memory_bytes)
        decision = plan_starts(dealt[node.name], alike, capacity, Facts(), now)
        starts += [replace(start, node=node.name) for start in decision.starts]
        reason = reason or (decision.reason if dealt[node.name] else "")
    return Decision(tuple(starts), reason)
