"""From run directories to plain values: what `runs` and `config` tell, as `--json` has it.

A run that was killed in its first moments lacks files; what they would have said is None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mission_gym.config.plain_yaml import SourcedValue, read_stored
from mission_gym.errors import MissionGymError, RunStateError
from mission_gym.report.formats import MISSING
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.evals import rank_best, read_evals
from mission_gym.store.lineage import Lineage, read_lineage
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir, View, list_fields

Tell = Callable[[str], None]
_EVAL_KEYS = ("step", "suite", "mode", "episodes", "return_mean", "return_low", "return_high", "outcomes")


def describe_run(run: RunDir) -> dict[str, Any]:
    """One row of `runs list`."""
    status = run.read_status()
    return {"name": run.name, "path": str(run.path)} | {
        key: status.get(key) for key in list_fields(View.LIST)
    }


@contextmanager
def leaving_out(run: RunDir, tell: Tell) -> Iterator[None]:
    """One bad run among many is told of, and does not end the work on the others."""
    try:
        yield
    except MissionGymError as error:
        tell(f"{run.name} is left out: {error}")


def describe_run_fully(run: RunDir, tell: Tell) -> dict[str, Any]:
    """The document of `runs show`. tell: of evaluations that can't be read."""
    status, config, lineage = run.read_status(), _config_of(run), lineage_of(run)
    best = best_evaluation(run) or {}
    document = describe_run(run) | {key: status.get(key) for key in list_fields(View.SHOW)}
    return document | {
        "env_id": config["env.env_id"].value if "env.env_id" in config else None,
        "notes": config["run.notes"].value if "run.notes" in config else None,
        "parent": lineage.parent if lineage else None,
        "parent_step": lineage.parent_step if lineage else None,
        "best_step": best.get("step"),
        "best_confirmed": best.get("confirmed"),
        "checkpoints": [info.step for info in list_checkpoints(run.checkpoints)],
        "evals": [{key: result.get(key) for key in _EVAL_KEYS} for result in _list_results(run, tell)],
    }


def best_evaluation(run: RunDir, tell: Tell = lambda text: None) -> dict[str, Any] | None:
    """The result that ranks first, with all episodes that count for it; None without any. tell: see
    `read_evals`."""
    ranked = rank_best(run, tell=tell)
    return ranked[0] if ranked else None


def _list_results(run: RunDir, tell: Tell) -> Iterator[dict[str, Any]]:
    """Evaluations in order; those of a confirmation one by one, over all their episodes."""
    for result in read_evals(run, tell):
        if result.get("candidates") is None:
            yield result
        else:
            yield from (each | {"suite": result["suite"]} for each in result["candidates"])


def name_apart(runs: Sequence[RunDir]) -> list[str]:
    """The name of each run; those of one name with as many folders above them as tell them apart."""
    names = []
    for run in runs:
        parts, depth = run.path.parts, 1
        others = [other.path.parts for other in runs if other.path != run.path]
        while any(other[-depth:] == parts[-depth:] for other in others):
            depth += 1
        names.append("/".join(parts[-depth:]))
    return names


def compare_runs(runs: list[RunDir], tell: Tell) -> dict[str, Any]:
    """The document of `runs compare`: results side by side, and the fields in which the configs differ; one
    that a run does not have is `n/a`. tell: of evaluations that can't be read."""
    rows = []
    for run, name in zip(runs, name_apart(runs), strict=True):
        best = best_evaluation(run, tell) or {}
        keys = ("step", "return_mean", "return_low", "return_high")
        rows.append(describe_run(run) | {"name": name, "best": {key: best.get(key) for key in keys}})
    configs = [_config_of(run) for run in runs]
    paths = dict.fromkeys(path for config in configs for path in config)
    differences = {}
    for path in paths:
        values = [config[path].value if path in config else MISSING for config in configs]
        if any(value != values[0] for value in values):
            differences[path] = values
    return {"runs": rows, "differences": differences}


def trace_lineage(run: RunDir, runs_dir: Path, tell: Tell) -> dict[str, Any]:
    """The document of `runs lineage`: ancestors, the nearest first, and descendants in order of age.
    RunStateError for a run that would be its own ancestor. tell: of those that are left out."""
    chain, steps = [run], []
    lineage = lineage_of(run)
    while lineage and lineage.parent_path:
        at = RunDir(Path(lineage.parent_path))
        if at.path in [run.path for run in chain]:
            names = " <- ".join(each.name for each in (*chain, at))
            raise RunStateError(f"{names} goes in a circle; a lineage.json of these runs was altered")
        chain.append(at)
        steps.append(lineage.parent_step)
        lineage = None
        with leaving_out(at, tell):
            lineage = lineage_of(at)
    ancestors = [
        {"name": at.name, "path": str(at.path), "step": step, "exists": at.exists}
        for at, step in zip(chain[1:], steps, strict=True)
    ]
    family, descendants = {run.path}, []
    elders = {each.path for each in chain}
    for other in list_runs(runs_dir):  # a child is always younger than its parent
        if other.path in elders:
            continue
        with leaving_out(other, tell):
            origin = lineage_of(other)
            parent = RunDir(Path(origin.parent_path)) if origin and origin.parent_path else None
            if origin and parent and parent.path in family:
                family.add(other.path)
                child = {"name": other.name, "path": str(other.path), "parent": parent.name}
                descendants.append(child | {"step": origin.parent_step})
    return {"run": run.name, "ancestors": ancestors, "descendants": descendants}


def describe_config(run: RunDir) -> dict[str, dict[str, Any]]:
    """The document of `config`: path to value and source."""
    return {path: stored._asdict() for path, stored in read_stored(run.config_yaml).items()}


def lineage_of(run: RunDir) -> Lineage | None:
    """The origin of a run, None where that was never written."""
    return read_lineage(run) if os.path.exists(run.lineage_json) else None


def _config_of(run: RunDir) -> dict[str, SourcedValue]:
    """The values of a run, none where they were never written."""
    try:
        return read_stored(run.config_yaml)
    except MissionGymError:
        return {}
