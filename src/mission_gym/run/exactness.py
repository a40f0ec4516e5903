"""Which config a checkpoint was made with, and whether a run that is taken up from it goes on exactly.

Each checkpoint carries the resolved config in its checksummed files, so that an edited config.yaml shows.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from mission_gym.check.devices import computes_exactly, name_gpu
from mission_gym.config.layers import Resolved, format_config
from mission_gym.config.schema import Config
from mission_gym.errors import RunStateError
from mission_gym.procs.machine import compare_versions
from mission_gym.run.config import read_config
from mission_gym.store.checkpoints import Checkpoint
from mission_gym.store.files import read_json, write_atomic
from mission_gym.store.lineage import read_lineage, write_lineage
from mission_gym.store.rundir import RunDir

_UNSEEN = {
    "run": {"run_name", "runs_dir", "notes", "tensorboard"},
    "compute": {"tune"},
    "vector": {"ray_address"},
}
# What can't change a number either, only when a run ends or what it keeps. The hash has always had them.
_ENDS = {"run": {"max_time", "stop_when"}, "checkpoints": {"checkpoint_freq", "keep_last", "keep_best"}}


def config_hash(config: Config) -> str:
    """A hash of everything that can change a number."""
    content = {
        name: section.model_dump(mode="json", exclude=_UNSEEN.get(name, set()))
        for name, section in config.sections().items()
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def write_config(run: RunDir, resolved: Resolved) -> None:
    """Write the config.yaml of a run, and its hash into the lineage, which is there already."""
    write_atomic(run.config_yaml, format_config(resolved))
    write_lineage(run, replace(read_lineage(run), config_hash=config_hash(resolved.config)))


def store_config(config: Config) -> dict[str, Any]:
    """What a checkpoint carries of the config: the values that can change a number, by path, as JSON has
    them. The total can where something falls over it."""
    unseen = {name: _UNSEEN.get(name, set()) | _ENDS.get(name, set()) for name in _UNSEEN | _ENDS}
    if not config.algorithm.scheduled_names():
        unseen["run"] |= {"timesteps"}
    values = {
        f"{name}.{field}": value
        for name, section in config.sections().items()
        for field, value in section.model_dump(mode="json", exclude=unseen.get(name, set())).items()
    }
    return dict(json.loads(json.dumps(values)))


def find_edits(checkpoint: Checkpoint, config: Config) -> dict[str, tuple[Any, Any]]:
    """What is not as it was when the checkpoint was made: by path, the value then and now. Empty for
    checkpoints that do not carry their config."""
    now = store_config(config)
    then = dict(checkpoint.state_json.get("config", {}))
    return {path: (then[path], now[path]) for path in now if path in then and then[path] != now[path]}


def read_own_config(run: RunDir, checkpoint: Checkpoint) -> tuple[Resolved, list[str]]:
    """The config that a checkpoint was made with; where config.yaml has other values now, they are told."""
    resolved = read_config(run.config_yaml)
    edits = find_edits(checkpoint, resolved.config)
    edits.pop("run.timesteps", None)  # of a run that was extended
    if not edits:
        return resolved, []
    told = [
        f"config.yaml says {path}={now}; checkpoint {checkpoint.step} was made with {then}, which is used"
        for path, (then, now) in edits.items()
    ]
    return resolved.with_values({path: then for path, (then, _) in edits.items()}, "checkpoint"), told


def judge_exactness(
    run: RunDir, checkpoint: Checkpoint, config: Config, *, restored: bool, other_kernel: bool
) -> str:
    """Whether a resume with this config is exact, and if not why. restored: whether everything came back."""
    causes = [f"{path} {then} -> {now}" for path, (then, now) in find_edits(checkpoint, config).items()]
    if "config" not in checkpoint.state_json and read_lineage(run).config_hash != config_hash(config):
        causes.append("config.yaml does not have the hash in lineage.json (edited, or of an earlier version)")
    if other_kernel:
        causes.append("another kernel learns")
    if config.vector.blocks == "first_ready":
        causes.append("first-ready blocks depend on timing, and the segments that were under way are dropped")
    device = str(config.compute.device)
    if not computes_exactly(device):
        causes.append(f"sums on {device} have no fixed order unless torch's deterministic algorithms are on")
    unknown: list[str] | None = None
    try:
        stored = dict(read_json(run.plan_json)).get("versions", {})
        changed, unknown = compare_versions(stored, name_gpu(device))
        causes = [*changed, *causes]
    except (RunStateError, AttributeError, TypeError, ValueError):
        pass
    if causes:
        return f"the resume is statistical, not exact: {', '.join(causes)}"
    if not restored:
        return "the resume is not exact: not everything could be brought back"
    if unknown is None:
        return "whether the resume is exact can't be told: plan.json is missing or damaged"
    if unknown:
        return f"the resume is exact if {' and '.join(unknown)} did not change: their versions were not kept"
    return "the resume is exact"
