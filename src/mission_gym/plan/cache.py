"""Plans of earlier runs on this machine, in the user's cache folder; keys and values of plans in configs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec
from mission_gym.errors import DiskError, RunStateError
from mission_gym.procs import read_machine
from mission_gym.procs.machine import count_threads, versions
from mission_gym.ray.cluster import find_cluster
from mission_gym.store.files import disk_errors, read_json, to_json, user_folder, write_json

MISS = 0.15  # relative error of the prediction; above it the next run measures again
_MIN_UPDATES = 100  # of a run whose rollouts grow with its environments


def find_cache() -> Path:
    """The folder of the plans."""
    return user_folder("cache") / "plans"


def make_key(content: dict[str, Any]) -> str:
    """A short hash of plain values."""
    text = json.dumps(to_json(content), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def read_plan(key: str) -> dict[str, Any] | None:
    """The stored plan; None if there is none, or if it is damaged."""
    try:
        entry = read_json(find_cache() / f"{key}.json")
    except (RunStateError, DiskError):
        return None
    is_whole = isinstance(entry, dict) and entry.pop("key", None) == make_key(entry)
    return entry if is_whole else None


def write_plan(key: str, entry: dict[str, Any]) -> bool:
    """Store a plan; False if the folder can't be written, so that the next run measures again."""
    try:
        path = find_cache() / f"{key}.json"
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, entry | {"key": make_key(entry)}, durable=False)
    except DiskError:
        return False
    return True


def note_rate(key: str, achieved: float) -> None:
    """Store the rate that a run of this plan achieved, and whether it missed the prediction."""
    entry = read_plan(key)
    if entry is not None:
        missed = abs(achieved / entry["steps_per_s"] - 1.0) > MISS
        write_plan(key, entry | {"achieved_steps_per_s": achieved, "missed": missed})


def size_paths(config: Config) -> tuple[str, str]:
    """The sizes that a plan may choose."""
    return "vector.n_envs", f"{config.run.algo}.n_steps_per_env"


def is_open(resolved: Resolved, path: str) -> bool:
    """Whether a plan may replace the value."""
    source = resolved.sources[path]
    return resolved.config.value(path) == "auto" or source == "default" or source.startswith("profile ")


def find_max_rollout(config: Config) -> int:
    """The largest rollout with enough updates; a power of two, so that similar runs get equal plans."""
    return 1 << max(1, config.run.timesteps // _MIN_UPDATES).bit_length() - 1


def make_plan_key(resolved: Resolved, spec: EnvSpec) -> str:
    """A hash of all that a plan depends on: machine, environment, sizes, networks and versions."""
    config, machine = resolved.config, read_machine()
    fields = config.model_dump(
        mode="json",
        include={
            "env": True,
            "vector": {"vector", "blocks", "n_envs", "num_workers", "ray_address", "actor_workers"},
            "policy": {
                "network_arch",
                "activation",
                "network",
                "recurrent",
                "recurrent_size",
                "critic_keys",
                "normalize_obs",
            },
            "compute": True,
            "run": {"algo"},
        },
    )
    fields["max_rollout"] = find_max_rollout(config)
    fields["most_threads"] = count_threads()
    fields["learning"] = config.algorithm.model_dump(mode="json", include=set(config.algorithm.COSTS))
    cluster = find_cluster()
    lent = [] if cluster is None else [f"{node.num_cpus} CPUs" for node in cluster.nodes()]
    hardware = [machine.cpu, machine.usable_cores, machine.efficiency_cores, *machine.nvidia_gpus, *lent]
    fixed = [path for path in size_paths(config) if not is_open(resolved, path)]
    return make_key(
        {"config": fields, "fixed": fixed, "machine": hardware, "spec": spec.signature} | versions()
    )


def apply_plan(resolved: Resolved, values: dict[str, Any]) -> Resolved:
    """The config with a plan's values; sizes that do not change keep their source."""
    sizes = size_paths(resolved.config)
    changed = {
        path: value
        for path, value in values.items()
        if path not in sizes or resolved.config.value(path) != value
    }
    return resolved.with_values(changed, "plan")
