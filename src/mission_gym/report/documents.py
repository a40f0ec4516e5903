"""From run directories to plain values: what `runs` and `config` tell, as `--json` has it.

A run that was killed in its first moments lacks files; what they would have said is None.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mission_gym.config.plain import Stored, read_stored
from mission_gym.errors import MissionGymError
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.evals import SELECT, best_step, read_evals
from mission_gym.store.lineage import Lineage, read_lineage
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir

_EVAL_KEYS = ("step", "suite", "mode", "episodes", "return_mean", "return_low", "return_high", "outcomes")


def describe_run(run: RunDir) -> dict[str, Any]:
    """One row of `runs list`."""
    status = run.read_status()
    keys = ("state", "step", "fps", "return_mean")
    return {"name": run.name, "path": str(run.path)} | {key: status.get(key) for key in keys}


def describe_run_fully(run: RunDir) -> dict[str, Any]:
    """The document of `runs show`."""
    status, config, lineage = run.read_status(), _config_of(run), lineage_of(run)
    keys = (
        "cause",
        "total",
        "updates",
        "gradient_steps",
        "episodes",
        "env_failures",
        "worker_restarts",
        "predicted_fps",
        "train_fps",
        "created",
    )
    document = describe_run(run) | {key: status.get(key) for key in keys}
    return document | {
        "env_id": config["env.env_id"].value if config else None,
        "notes": config["run.notes"].value if config else None,
        "parent": lineage.parent if lineage else None,
        "parent_step": lineage.parent_step if lineage else None,
        "best_step": best_step(run),
        "verdict": status.get("verdict"),
        "checkpoints": [info.step for info in list_checkpoints(run.checkpoints)],
        "evals": [{key: result.get(key) for key in _EVAL_KEYS} for result in read_evals(run)],
    }


def best_evaluation(run: RunDir) -> dict[str, Any] | None:
    """The evaluation on the selection suite that ranks first, None without any."""
    step = best_step(run)
    found = [result for result in read_evals(run) if result["suite"] == SELECT and result["step"] == step]
    return found[0] if found else None


def compare_runs(runs: list[RunDir]) -> dict[str, Any]:
    """The document of `runs compare`: results side by side, and the fields in which the configs differ."""
    rows = []
    for run in runs:
        best = best_evaluation(run) or {}
        keys = ("step", "return_mean", "return_low", "return_high")
        rows.append(describe_run(run) | {"best": {key: best.get(key) for key in keys}})
    configs = [_config_of(run) for run in runs]
    paths = dict.fromkeys(path for config in configs for path in config)
    differences = {}
    for path in paths:
        values = [config[path].value if path in config else None for config in configs]
        if any(value != values[0] for value in values):
            differences[path] = values
    return {"runs": rows, "differences": differences}


def trace_lineage(run: RunDir, runs_dir: Path) -> dict[str, Any]:
    """The document of `runs lineage`: ancestors, the nearest first, and descendants in order of age."""
    ancestors: list[dict[str, Any]] = []
    at = run
    while (lineage := lineage_of(at)) and lineage.parent_path:
        at = RunDir(Path(lineage.parent_path))
        seen = {"name": lineage.parent, "path": str(at.path), "step": lineage.parent_step}
        ancestors.append(seen | {"exists": at.exists})
    family, descendants = {str(run.path)}, []
    for other in list_runs(runs_dir):  # a child is always younger than its parent
        origin = lineage_of(other)
        if origin and origin.parent_path in family:
            family.add(str(other.path))
            descendants.append(
                {
                    "name": other.name,
                    "path": str(other.path),
                    "parent": origin.parent,
                    "step": origin.parent_step,
                }
            )
    return {"run": run.name, "ancestors": ancestors, "descendants": descendants}


def describe_config(run: RunDir) -> dict[str, dict[str, Any]]:
    """The document of `config`: path to value and source."""
    return {path: stored._asdict() for path, stored in read_stored(run.config_yaml).items()}


def lineage_of(run: RunDir) -> Lineage | None:
    """The origin of a run, None where that was never written."""
    return read_lineage(run) if run.lineage_json.exists() else None


def _config_of(run: RunDir) -> dict[str, Stored]:
    """The values of a run, none where they were never written."""
    try:
        return read_stored(run.config_yaml)
    except MissionGymError:
        return {}
