"""What `mission-gym tune` tells: the plan of an environment on this machine, kept or measured."""

from __future__ import annotations

from typing import Any

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import fix_num_envs
from mission_gym.plan.cache import find_cache, read_plan, write_plan
from mission_gym.plan.tuner import Say, Tuner, make_plan_key
from mission_gym.plan.wishes import apply
from mission_gym.ray.costs import check_nodes, describe_cluster, measure_cluster
from mission_gym.ray.rates import Work
from mission_gym.rollout.blocks import block_bytes
from mission_gym.run.assemble import Assembly, algorithm_of, one_blas_thread
from mission_gym.run.environment import Environment, leave_vector_form, probe_environment

_TOTALS = {"100k": 100_000, "1M": 1_000_000, "10M": 10_000_000}


def advise(resolved: Resolved, budget_s: float, say: Say, *, retune: bool = False) -> dict[str, Any]:
    """The document of `tune`: a plan measured with at least this budget, from the cache where it is there."""
    resolved, adapted = leave_vector_form(resolved)
    for note in adapted:
        say(note)
    environment, resolved = probe_environment(resolved)
    workshop = Assembly(environment, algorithm_of(resolved.config))
    key = make_plan_key(resolved, environment.spec)
    entry = read_plan(key)
    kept = bool(entry and not retune and not entry.get("missed") and entry.get("budget_s", 0.0) >= budget_s)
    if entry is None or not kept:
        with one_blas_thread():
            entry = Tuner(workshop, resolved, budget_s, say, entry).run()
        if not write_plan(key, entry):
            say(f"the plan can't be kept in {find_cache()}; the next run measures again")
    layout, update = entry["layout"], entry["update"]
    told = {} if environment.cluster is None else {"cluster": _describe_cluster(workshop, resolved, entry)}
    return told | {
        "env_id": resolved.config.env.env_id,
        "how": _describe(environment, layout),
        **{name: layout[name] for name in ("backend", "n_envs", "num_workers", "n_steps_per_env")},
        **{name: update[name] for name in ("device", "kernel", "threads")},
        "predicted_steps_per_s": entry["steps_per_s"],
        "predicted_s": {name: total / entry["steps_per_s"] for name, total in _TOTALS.items()},
        **{name: entry[name] for name in ("memory_bytes", "reasons", "changes", "measured", "spent_s")},
        "scaling": [point | {"how": _describe(environment, point)} for point in entry["scaling"]],
        "machine": entry.get("machine"),
        "cached": kept,
    }


def _describe_cluster(workshop: Assembly, resolved: Resolved, entry: dict[str, Any]) -> dict[str, Any]:
    """What the cluster has and costs, and what more actors would make of this plan."""
    cluster, spec = workshop.environment.cluster, workshop.environment.spec
    assert cluster is not None
    check_nodes(cluster)
    config = workshop.settle(apply(fix_num_envs(resolved), entry["values"]))
    num_workers = config.vector.actor_workers or 1
    num_actors = -(-config.vector.num_workers // num_workers)
    rows, steps = -(-config.num_columns // num_actors), config.algorithm.n_steps_per_env
    work = Work(
        num_workers=num_workers,
        num_rows=rows,
        num_steps=steps,
        step_s=entry["measured"]["env"]["step_s"] / spec.num_agents + entry["measured"]["act"]["row_s"],
        step_bytes=-(-block_bytes(spec, steps, rows) // (steps * rows)),
        weights_bytes=sum(array.nbytes for array in workshop.make_learner(config).weights().arrays.values()),
        update_s=entry["update"]["step_s"],
        overlaps=config.compute.overlap == "on" or config.vector.blocks == "first_ready",
    )
    return describe_cluster(cluster, measure_cluster(cluster), work)


def _describe(environment: Environment, plan: dict[str, Any]) -> str:
    """Where environments run, for people: `workers, 3 workers`."""
    workers = environment.backends[plan["backend"]].name_workers(plan["num_workers"])
    return f"{plan['backend']}{workers and f', {workers}'}"
