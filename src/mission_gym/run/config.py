"""The config of a run: resolved from the user's values, written into the run directory, and read back.

Each checkpoint stores the values that can change a number in its checksummed files, so that an edit of
config.yaml is noticed.
"""

from __future__ import annotations

import json
from functools import cache, partial
from typing import Any

from mission_gym.algorithms import ALGORITHMS, load_algorithm
from mission_gym.config import layers
from mission_gym.config.fields import Schema
from mission_gym.config.layers import Resolved, format_config
from mission_gym.config.schema import Config
from mission_gym.store.checkpoints import Checkpoint
from mission_gym.store.files import write_atomic
from mission_gym.store.rundir import RunDir
from mission_gym.store.sinks import list_trackers
from mission_gym.vector.backends import BACKENDS, load_backend

# Fields that can't change the numbers of a run, only its name, its end and the files that it keeps.
_WITHOUT_EFFECT = {
    "run": {"run_name", "runs_dir", "notes", "tensorboard", "max_time", "stop_when"},
    "compute": {"tune"},
    "vector": {"ray_address"},
    "checkpoints": {"checkpoint_freq", "keep_last", "keep_best"},
}


@cache
def schema() -> Schema:
    """All sections and fields that a run may have."""
    sections = {name: load_algorithm(name).section for name in ALGORITHMS}
    return Schema(sections, {name: load_backend(name).text for name in BACKENDS}, list_trackers())


resolve = partial(layers.resolve, schema())
read_config = partial(layers.read_config, schema())


def write_config(run: RunDir, resolved: Resolved) -> None:
    """Write config.yaml."""
    write_atomic(run.config_yaml, format_config(resolved))


def store_config(config: Config) -> dict[str, Any]:
    """The values that a checkpoint stores: those that can change a number, by path, as JSON. The total number
    of steps is one of them if a schedule depends on it."""
    left_out = dict(_WITHOUT_EFFECT)
    if not config.algorithm.scheduled_names():
        left_out["run"] = left_out["run"] | {"timesteps"}
    values = {
        f"{name}.{field}": value
        for name, section in config.sections().items()
        for field, value in section.model_dump(mode="json", exclude=left_out.get(name)).items()
    }
    return dict(json.loads(json.dumps(values)))


def find_edits(checkpoint: Checkpoint, config: Config) -> dict[str, tuple[Any, Any]]:
    """The values that changed since the checkpoint was saved, by path: then and now."""
    then, now = dict(checkpoint.state_json.get("config", {})), store_config(config)
    return {path: (then[path], now[path]) for path in now if path in then and then[path] != now[path]}


def read_own_config(run: RunDir, checkpoint: Checkpoint) -> tuple[Resolved, list[str]]:
    """The config that a checkpoint was saved with, and a note for each value that differs in config.yaml."""
    resolved = read_config(run.config_yaml)
    edits = find_edits(checkpoint, resolved.config)
    edits.pop("run.timesteps", None)  # the run was extended
    if not edits:
        return resolved, []
    notes = [
        f"config.yaml has {path}={now}; checkpoint {checkpoint.step} was saved with {then}, which is used"
        for path, (then, now) in edits.items()
    ]
    return resolved.with_values({path: then for path, (then, _) in edits.items()}, "checkpoint"), notes
