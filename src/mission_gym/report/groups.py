"""Groups of runs as plain values and as views: their jobs, their result, and groups beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.config.plain_yaml import read_stored
from mission_gym.errors import MissionGymError, RunStateError
from mission_gym.intervals import (
    BandPoint,
    compute_band,
    compute_improvement,
    compute_iqm,
    compute_iqm_interval,
)
from mission_gym.report.formats import MISSING, show_count, show_number, show_rate, show_value
from mission_gym.report.tables import make_pairs, make_table
from mission_gym.store.groups import ENDED, GroupDir, Job, State
from mission_gym.store.returns import CurvePoint, read_curve, read_last_return
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import format_csv_line

Document = Mapping[str, Any]
Tell = Callable[[str], None]
_STYLES = {"done": "green", "failed": "bold red", "stopped": "yellow", "running": "cyan"}
_NUM_ROWS = 8  # of a curve as a table
# In what runs of one group always differ, or may without meaning anything.
_OWN_PATHS = ("run.seed", "run.run_name", "run.runs_dir", "run.notes")


class RunSet(NamedTuple):
    """Runs under one name: a group, or a run alone."""

    name: str
    runs: tuple[RunDir, ...]
    variants: tuple[str, ...] = ()  # of each run, where they have several: the strata


def describe_jobs(
    group: GroupDir, jobs: Mapping[str, Job], read_status: Callable[[Path], Document] | None = None
) -> list[dict[str, Any]]:
    """The rows of `jobs status`. read_status: of the run at a path, as a journal names it."""
    return [_describe_job(group, job, read_status or _read_status) for job in jobs.values()]


def _describe_job(group: GroupDir, job: Job, read_status: Callable[[Path], Document]) -> dict[str, Any]:
    status = read_status(job.run) if job.run is not None else {}
    cause, state = job.cause, str(job.state)
    if state == "starting":
        is_own, now = status.get("pid") == group.read_pid(job), status.get("state")
        if group.is_alive(job.name):
            state = "running" if job.run is not None and is_own and now != "starting" else state
        else:  # until a supervisor sees it
            has_ended = is_own and now in ENDED
            state, cause = (str(now), status.get("cause", "")) if has_ended else ("failed", "process gone")
    return {
        "name": job.name,
        "state": state,
        "run": None if job.run is None else str(job.run),
        "step": status.get("step"),
        "total": status.get("total"),
        "fps": (status.get("now_fps") if state == "running" else None) or status.get("fps"),
        "return_mean": status.get("return_mean"),
        "cores": job.cores or None,
        "attempts": job.attempts,
        "cause": cause or None,
    }


def _read_status(path: Path) -> Document:
    with suppress(RunStateError):
        return RunDir(path).read_status()
    return {}


def view_jobs(rows: Sequence[Document]) -> RenderableType:
    """`jobs status`: a row per job, and what all of them do together."""
    numbers = ("step", "of", "steps/s", "return", "cores", "tries")
    table = make_table("job", "state", *numbers, "cause", numbers=numbers)
    for row in rows:
        table.add_row(
            row["name"],
            Text(row["state"], style=_STYLES.get(row["state"], "")),
            show_count(row["step"]),
            show_count(row["total"]),
            show_count(row["fps"]),
            show_number(row["return_mean"]),
            show_count(row["cores"]),
            str(row["attempts"]),
            Text(row["cause"] or "", style="dim"),
        )
    return Group(table, Text(tell_counts(rows), style="dim"))


def tell_counts(rows: Sequence[Document]) -> str:
    """How many jobs are in each state, and the steps that they make together."""
    states = [row["state"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in get_args(State) if state in states)
    rates = [row["fps"] for row in rows if row["state"] == "running" and row["fps"]]
    return f"{counts}; {show_count(sum(rates))} steps/s in all" if rates else counts


def describe_group(group: GroupDir) -> dict[str, Any]:
    """What group.json holds, and the curve of training over its runs."""
    record = group.read()
    # One curve over different jobs would say nothing.
    is_one = len({job.request.variant for job in group.read_jobs().values()}) == 1
    runs = [RunDir(Path(path)) for path in record.runs] if is_one else []
    band = compute_band(_read_curves(runs, lambda point: point.step))
    points = [
        {"step": round(point.x), "iqm": point.mean, "low": point.low, "high": point.high} for point in band
    ]
    return record.model_dump() | {"path": str(group.path), "curve": points}


def view_group(document: Document) -> RenderableType:
    """The end of a group: its estimate, its variants, the curve with its band, the best run."""
    variants = document.get("variants") or {}
    whole = f"{_show_estimate(document)} of the last evaluations, {_count_seeds(document)}"
    if document["iqm"] is None and variants:
        whole = "of each job apart, since their environments differ"
    rows = [("group", document["path"]), ("IQM", whole)]
    if len(variants) > 1:
        rows += [
            (f"  {name}", f"{_show_estimate(each)}, {each['seeds']} runs") for name, each in variants.items()
        ]
    rows.append(("best run", Path(document["best_run"]).name if document.get("best_run") else MISSING))
    views: list[RenderableType] = [make_pairs(rows)]
    if document["curve"] and len(variants) <= 1:
        table = make_table("step", "return", "95 % interval", numbers=("step", "return"))
        curve = document["curve"]
        for number in dict.fromkeys(round(i * (len(curve) - 1) / (_NUM_ROWS - 1)) for i in range(_NUM_ROWS)):
            point = curve[number]
            bounds = f"{show_number(point['low'])} to {show_number(point['high'])}"
            table.add_row(show_count(point["step"]), show_number(point["iqm"]), bounds)
        views += [Text(), table]
    return Group(*views)


def _show_estimate(document: Document) -> str:
    bounds = f" ({show_number(document['low'])} to {show_number(document['high'])})"
    return f"{show_number(document['iqm'])}{bounds if document['low'] is not None else ''}"


def _count_seeds(document: Document) -> str:
    seeds = sum(each["seeds"] for each in (document.get("variants") or {}).values())
    interval = (
        "95 % stratified bootstrap interval" if document["low"] is not None else "too few for an interval"
    )
    return f"{seeds} runs, {interval}"


def gather_runs(group: GroupDir, tell: Tell) -> RunSet:
    """The runs of a group that count for its estimate; they lie beside it, wherever it was made."""
    runs, variants = [], []
    for job in group.read_jobs().values():
        if job.run is not None and job.state == "done":
            runs.append(RunDir(group.path.parent / job.run.name))
            variants.append(job.request.variant)
        else:
            tell(f"{group.name}/{job.name} is left out: it is not done")
    return RunSet(group.name, tuple(runs), tuple(variants))


def list_variants(group: GroupDir, jobs: Mapping[str, Job]) -> list[RunSet]:
    """The runs of a group by variant; those of an only one under the group's name."""
    runs: dict[str, list[RunDir]] = {}
    for job in jobs.values():
        if job.run is not None:
            runs.setdefault(job.request.variant, []).append(RunDir(job.run))
    sets = [RunSet(variant, tuple(each)) for variant, each in runs.items()]
    return [sets[0]._replace(name=group.name)] if len(sets) == 1 else sets


def compare_groups(sets: Sequence[RunSet], tell: Tell) -> dict[str, Any]:
    """The document of `runs compare` where one of them is a group. tell: of runs that can't be read."""
    rows, configs, all_returns = [], [], []
    for each in sets:
        returns, runs = [], []
        strata: dict[str, list[float]] = {}
        for run, variant in zip(each.runs, each.variants or [""] * len(each.runs), strict=True):
            try:
                last, status = read_last_return(run), run.read_status()
            except RunStateError as error:
                tell(f"{run.name} is left out: {error}")
                continue
            runs.append(
                {"name": run.name, "path": str(run.path), "state": status.get("state"), "last_return": last}
            )
            if last is not None:
                returns.append(last)
                strata.setdefault(variant, []).append(last)
        config = _read_values(each.runs)
        if isinstance(config.get("env.env_id"), list):  # returns of several environments have no mean
            returns, strata = [], {}
        interval = compute_iqm_interval(list(strata.values()))
        of_one = each.runs if len(set(each.variants)) <= 1 else ()  # as in describe_group
        curves = {
            "by_step": compute_band(_read_curves(of_one, lambda point: point.step)),
            "by_time": compute_band(_read_curves(of_one, lambda point: point.seconds)),
        }
        rows.append(
            {
                "name": each.name,
                "runs": runs,
                "iqm": compute_iqm(returns) if returns else None,
                "low": interval and interval.low,
                "high": interval and interval.high,
                "curves": {key: [point._asdict() for point in band] for key, band in curves.items()},
            }
        )
        configs.append(config)
        all_returns.append(returns)
    first = sets[0].name
    improvements = [
        {"of": each.name, "over": first} | _describe_improvement(returns, all_returns[0])
        for each, returns in zip(sets[1:], all_returns[1:], strict=True)
    ]
    paths = dict.fromkeys(path for config in configs for path in config)
    values = {path: [config.get(path, MISSING) for config in configs] for path in paths}
    differences = {path: each for path, each in values.items() if any(value != each[0] for value in each)}
    return {"groups": rows, "improvement": improvements, "differences": differences}


def _describe_improvement(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    found = compute_improvement(ours, theirs)
    keys = ("probability", "low", "high")
    return dict(zip(keys, found, strict=True)) if found else dict.fromkeys(keys)


def _read_values(runs: Sequence[RunDir]) -> dict[str, Any]:
    """The values of a group's configs; where its runs differ, all of them."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        with suppress(MissionGymError):
            for path, stored in read_stored(run.config_yaml).items():
                if path not in _OWN_PATHS:
                    values = found.setdefault(path, [])
                    values += [] if stored.value in values else [stored.value]
    return {path: values[0] if len(values) == 1 else values for path, values in found.items()}


def _read_curves(
    runs: Sequence[RunDir], across: Callable[[CurvePoint], float]
) -> list[list[tuple[float, float]]]:
    curves = []
    for run in runs:
        with suppress(RunStateError):
            curves.append([(across(point), point.ret) for point in read_curve(run)])
    return curves


def view_group_comparison(document: Document) -> RenderableType:
    """`runs compare` of groups: a column each."""
    groups = document["groups"]
    table = make_table("", *(group["name"] for group in groups))
    table.add_row("runs", *(str(len(group["runs"])) for group in groups))
    table.add_row("IQM (95 %)", *(_show_estimate(group) for group in groups))
    better = ["", *(_show_improvement(each) for each in document["improvement"])]
    table.add_row(f"better than {groups[0]['name']}", *better)
    for path, values in document["differences"].items():
        table.add_row(path, *(show_value(value) for value in values))
    return table


def _show_improvement(found: Document) -> str:
    bounds = f" ({show_rate(found['low'])} to {show_rate(found['high'])})" if found["low"] is not None else ""
    return f"{show_rate(found['probability'])}{bounds}"


def make_comparison_csv(document: Document) -> str:
    """One line for each run of a comparison of groups."""
    lines = [format_csv_line(("group", "run", "state", "last_return", "path"))]
    for group in document["groups"]:
        for run in group["runs"]:
            cells = (group["name"], run["name"], run["state"], run["last_return"], run["path"])
            lines.append(format_csv_line(cells))
    return "".join(lines)


def list_bands(document: Document, key: str) -> dict[str, list[BandPoint]]:
    """The curves of a comparison by the name of their group."""
    return {
        group["name"]: [BandPoint(**each) for each in group["curves"][key]] for group in document["groups"]
    }
