"""Results that need no run: the plan of `tune`, the check before a sweep, and the doctor's check of devices.

They take the first steps of `run/settle.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mission_gym.algorithms import ALGORITHMS
from mission_gym.config.layers import Resolved
from mission_gym.config.rules import fix_num_envs
from mission_gym.config.schema import Settled
from mission_gym.data import EnvSpec
from mission_gym.env.pace import time_steps
from mission_gym.errors import ConfigError, MissionGymError
from mission_gym.plan.cache import apply_plan, find_cache, make_plan_key, read_plan, write_plan
from mission_gym.plan.costs import Builder
from mission_gym.plan.measured import fill_measured
from mission_gym.plan.setups import find_devices
from mission_gym.plan.tuner import PROBE_S, Say, Tuned, Tuner
from mission_gym.procs import usable_cores
from mission_gym.ray.costs import describe_cluster
from mission_gym.run.build import algorithm_of, one_blas_thread
from mission_gym.run.config import resolve
from mission_gym.run.settle import find_unusable_values, make_builder, open_new, settle, verify_device

_TOTALS = {"100k": 100_000, "1M": 1_000_000, "10M": 10_000_000}
_START_S = 2.0  # of a process, before its first step
_SMALL_ENVS = ("CartPole-v1", "Pendulum-v1")
_DEVICE_FLAGS: dict[str, Any] = {
    "device": "cpu",
    "kernel": "torch",
    "precision": "float32",
    "network_arch": "256,256",
    "tune": False,
}


def advise(resolved: Resolved, budget_s: float, say: Say, *, retune: bool = False) -> dict[str, Any]:
    """The document of `tune`: a plan with at least this budget, from the cache if it is there."""
    environment, resolved, notes, _ = open_new(resolved)
    for note in notes:
        say(note)
    builder, key = make_builder(environment, resolved), make_plan_key(resolved, environment.spec)
    entry = read_plan(key)
    is_cached = entry and not retune and not entry.get("missed") and entry.get("budget_s", 0.0) >= budget_s
    if entry is None or not is_cached:
        with one_blas_thread():
            entry = Tuner(builder, resolved, budget_s, say, entry).run()
        if not write_plan(key, entry):
            say(f"the plan can't be stored in {find_cache()}; the next run measures again")
    with one_blas_thread():
        planned = apply_plan(fix_num_envs(resolved), entry["values"])
        entry = fill_measured(builder, Tuned(planned, key, entry), say).entry
    assert entry is not None
    layout, update = entry["layout"], entry["update"]
    cluster = {} if builder.cluster is None else {"cluster": describe_cluster(builder.cluster)}
    return cluster | {
        "env_id": resolved.config.env.env_id,
        "how": _describe_backend(builder, layout),
        **{name: layout[name] for name in ("backend", "n_envs", "num_workers", "n_steps_per_env")},
        **{name: update[name] for name in ("device", "kernel", "threads")},
        "predicted_steps_per_s": entry["steps_per_s"],
        "predicted_s": {name: total / entry["steps_per_s"] for name, total in _TOTALS.items()},
        **{name: entry[name] for name in ("memory_bytes", "reasons", "changes", "measured", "spent_s")},
        "scaling": [point | {"how": _describe_backend(builder, point)} for point in entry["scaling"]],
        "machine": entry["machine"],
        "cached": bool(is_cached),
    }


def _describe_backend(builder: Builder, plan: dict[str, Any]) -> str:
    """The backend and its processes: `workers, 3 workers`."""
    workers = builder.backends[plan["backend"]].name_workers(plan["num_workers"])
    return f"{plan['backend']}{workers and f', {workers}'}"


class SweepPreview(NamedTuple):
    """The facts about the runs of a sweep that the environment determines."""

    resolved: Resolved  # with the values that follow from the environment
    sees_images: bool
    waits_on_loop: bool
    main_outcome: str | None
    least_s: float  # duration of a run, without learning
    misfits: Sequence[str]  # paths of the values that such a run would refuse


def preview_sweep(resolved: Resolved, values: Mapping[str, Any]) -> SweepPreview:
    """Check the config of a sweep's runs and open their environment; raises the error that a run would.

    values: by path, one that some of the runs get.
    """
    environment, resolved, *_ = open_new(resolved, measure_s=PROBE_S)
    spec, config, pace = environment.spec, resolved.config, environment.pace
    if problems := find_unusable_values(resolved, environment):
        raise ConfigError(problems)
    changed = {path: resolved.with_values({path: value}, "flag --over") for path, value in values.items()}
    misfits = [path for path, each in changed.items() if find_unusable_values(each, environment)]
    if pace is None and environment.backend.runs_here and not environment.backend.own_vector_form:
        pace = time_steps(environment.factory, spec, PROBE_S)
    least_s = _START_S
    if pace is not None:
        at_once = config.num_envs if pace.waits else usable_cores()
        least_s += config.run.timesteps * pace.step_s / config.vector.num_agents / at_once
    return SweepPreview(
        resolved, spec.sees_images, spec.coroutines != "none", spec.main_outcome, least_s, misfits
    )


def check_devices() -> dict[str, str]:
    """Every device and precision, with the causes why training with an algorithm leaves it out; empty if none
    does."""
    gpus = ["cuda", *(f"cuda:{number}" for number in range(1, torch.cuda.device_count()))]
    devices = find_devices(gpus)
    settled = [_settle_small(algo) for algo in ALGORITHMS] if len(devices) > 1 else []
    causes: dict[str, str] = {}
    for device, has_bf16 in devices.items():
        for precision in ("float32", "bf16") if has_bf16 else ("float32",):
            if device != "cpu":
                found = (_check_device(config, spec, device, precision) for config, spec in settled)
                causes[f"{device} {precision}"] = "; ".join(dict.fromkeys(filter(None, found)))
    return causes


def _settle_small(algo: str) -> tuple[Settled, EnvSpec]:
    """A config of the algorithm on a small environment, with discrete actions if it takes them."""
    for env_id in _SMALL_ENVS:
        environment, resolved, *_ = open_new(resolve(env_id, _DEVICE_FLAGS | {"algo": algo}))
        if not find_unusable_values(resolved, environment):
            break
    return settle(resolved, environment)[0].settled, environment.spec


def _check_device(config: Settled, spec: EnvSpec, device: str, precision: str) -> str:
    if precision == "bf16" and not algorithm_of(config).has_bf16:
        return ""
    compute = config.compute.model_copy(update={"device": device, "precision": precision})
    try:
        return verify_device(config.model_copy(update={"compute": compute}), spec)
    except (RuntimeError, TypeError, MissionGymError) as error:  # border: drivers raise anything
        return str(error).splitlines()[0]


def main() -> None:
    """Print the result of `check_devices` as one line of JSON; in a separate process, since drivers crash."""
    sys.stdout.write(f"{json.dumps(check_devices())}\n")
