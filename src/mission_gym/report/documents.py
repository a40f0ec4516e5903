"""From run directories to plain values: the documents of `runs` and `config`, as `--json` prints them.

A run that was killed at its start lacks files; their values are None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mission_gym.config.plain_yaml import SourcedValue, read_stored
from mission_gym.errors import MissionGymError, RunStateError
from mission_gym.report.formats import MISSING
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.evals import rank_best, read_evals
from mission_gym.store.groups import list_groups
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import Lineage, RunDir, View, list_fields, read_lineage
from mission_gym.store.tables import MetricsLog

Say = Callable[[str], None]
_LIST_PATHS = {"env_id": "env.env_id", "algo": "run.algo", "seed": "run.seed"}
_CONFIG_PATHS = _LIST_PATHS | {"notes": "run.notes"}
_BEST_KEYS = (
    "step", "episodes", "return_mean", "return_low", "return_high", "confirmed", "chosen_from"
)  # fmt: skip
_EVAL_KEYS = ("step", "suite", "mode", "episodes", "return_mean", "return_low", "return_high", "outcomes")


def describe_run(run: RunDir) -> dict[str, Any]:
    """The main values of a run."""
    status = run.read_status()
    return {"name": run.name, "path": str(run.path)} | _pick(status, list_fields(View.LIST))


def list_documents(runs_dir: Path, say: Say) -> list[dict[str, Any]]:
    """The document of `runs list`, the newest run last. say: reports runs that are left out."""
    groups: dict[str, str] = {}
    for group in list_groups(runs_dir):
        with suppress(RunStateError):
            groups |= {job.run.name: group.name for job in group.read_jobs().values() if job.run}
    rows = []
    for run in list_runs(runs_dir):
        with skip_damaged(run, say):
            rows.append(_describe_listed(run) | {"group": groups.get(run.name)})
    return rows


def _describe_listed(run: RunDir) -> dict[str, Any]:
    config, status, best = _read_config(run), run.read_status(), best_evaluation(run) or {}
    main = next(MetricsLog.stream(run.metrics_jsonl), {}).get("main_outcome")
    values = {name: config[path].value if path in config else None for name, path in _LIST_PATHS.items()}
    return describe_run(run) | values | {
        "main_outcome": main,
        "outcome": (status.get("outcomes") or {}).get(main),
        "best_step": best.get("step"),
        "best_return": best.get("return_mean"),
        "best_outcome": ((best.get("outcomes") or {}).get(main) or {}).get("rate"),
        "created": status.get("created"),
    }  # fmt: skip


def _pick(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: values.get(key) for key in keys}


@contextmanager
def skip_damaged(run: RunDir, say: Say) -> Iterator[None]:
    """Report a run that can't be read, and continue with the others."""
    try:
        yield
    except MissionGymError as error:
        say(f"{run.name} is left out: {error}")


def describe_run_fully(run: RunDir, say: Say) -> dict[str, Any]:
    """The document of `runs show`. say: reports evaluations that can't be read."""
    config, lineage, best = _read_config(run), find_lineage(run), best_evaluation(run) or {}
    values = {name: config[path].value if path in config else None for name, path in _CONFIG_PATHS.items()}
    results = []
    for result in read_evals(run, say):  # those of a confirmation one by one, over all their episodes
        found = result.get("candidates")
        results += [result] if found is None else [each | {"suite": result["suite"]} for each in found]
    own = describe_run(run) | _pick(run.read_status(), list_fields(View.SHOW))
    return own | values | {
        "parent": lineage.parent if lineage else None,
        "parent_step": lineage.parent_step if lineage else None,
        "best_step": best.get("step"),
        "best_confirmed": best.get("confirmed"),
        "checkpoints": [info.step for info in list_checkpoints(run.checkpoints)],
        "evals": [_pick(result, _EVAL_KEYS) for result in results],
    }  # fmt: skip


def best_evaluation(run: RunDir, say: Say = lambda text: None) -> dict[str, Any] | None:
    """The evaluation that ranks first, with the number of those it was chosen from; None without any. After a
    confirmation its results are of the further episodes alone. say: see `read_evals`."""
    ranked = rank_best(run, warn=say)
    return ranked[0] | {"chosen_from": len(ranked)} if ranked else None


def unique_names(runs: Sequence[RunDir]) -> list[str]:
    """The name of each run; runs of the same name get as many parent folders as make them different."""
    names = []
    for run in runs:
        parts, depth = run.path.parts, 1
        others = [other.path.parts for other in runs if other.path != run.path]
        while any(other[-depth:] == parts[-depth:] for other in others):
            depth += 1
        names.append("/".join(parts[-depth:]))
    return names


def compare_runs(runs: list[RunDir], say: Say) -> dict[str, Any]:
    """The document of `runs compare`: results, and the config fields that differ, `n/a` in runs without them;
    those of an algorithm that not all runs have are apart. say: reports evaluations that can't be read."""
    rows = []
    for run, name in zip(runs, unique_names(runs), strict=True):
        found = best_evaluation(run, say) or {}
        best = _pick(found, _BEST_KEYS) | {"outcomes": found.get("outcomes") or {}}
        rows.append(describe_run(run) | {"name": name, "best": best})
    configs = [{path: each.value for path, each in _read_config(run).items()} for run in runs]
    differences = find_differences(configs)
    sections = {str(config.get("run.algo")) for config in configs}
    others = {  # the settings of an algorithm that not all runs have
        path: values
        for path, values in differences.items()
        if path.partition(".")[0] in sections and MISSING in values
    }
    shared = {path: values for path, values in differences.items() if path not in others}
    return {"runs": rows, "differences": shared, "of_one_algorithm": others}


def find_differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of each path in which configs differ; one that a config lacks is `n/a`."""
    paths = dict.fromkeys(path for config in configs for path in config)
    values = {path: [config.get(path, MISSING) for config in configs] for path in paths}
    return {path: each for path, each in values.items() if any(value != each[0] for value in each)}


def trace_lineage(run: RunDir, runs_dir: Path, say: Say) -> dict[str, Any]:
    """The document of `runs lineage`: ancestors, the nearest first, and descendants by age. RunStateError for
    a run that is its own ancestor. say: reports runs that are left out."""
    chain, steps = [run], []
    lineage = find_lineage(run)
    while lineage and lineage.parent_path:
        parent = RunDir(Path(lineage.parent_path))
        if parent.path in [each.path for each in chain]:
            names = " <- ".join(each.name for each in (*chain, parent))
            raise RunStateError(f"{names} is a cycle; a lineage.json of these runs was altered")
        chain.append(parent)
        steps.append(lineage.parent_step)
        lineage = None
        with skip_damaged(parent, say):
            lineage = find_lineage(parent)
    ancestors = [
        {"name": each.name, "path": str(each.path), "step": step, "exists": each.exists}
        for each, step in zip(chain[1:], steps, strict=True)
    ]
    family, descendants = {run.path}, []
    elders = {each.path for each in chain}
    for other in list_runs(runs_dir):  # a child is always younger than its parent
        if other.path in elders:
            continue
        with skip_damaged(other, say):
            origin = find_lineage(other)
            parent_path = RunDir(Path(origin.parent_path)).path if origin and origin.parent_path else None
            if origin and parent_path in family:
                family.add(other.path)
                child = {"name": other.name, "path": str(other.path), "parent": Path(str(parent_path)).name}
                descendants.append(child | {"step": origin.parent_step})
    return {"run": run.name, "ancestors": ancestors, "descendants": descendants}


def describe_config(run: RunDir) -> dict[str, dict[str, Any]]:
    """The document of `config`: path to value and source."""
    return {path: stored._asdict() for path, stored in read_stored(run.config_yaml).items()}


def find_lineage(run: RunDir) -> Lineage | None:
    """The origin of a run; None if it was never written."""
    return read_lineage(run) if os.path.exists(run.lineage_json) else None


def _read_config(run: RunDir) -> dict[str, SourcedValue]:
    """The values of a run; empty if they were never written."""
    try:
        return read_stored(run.config_yaml)
    except MissionGymError:
        return {}
