"""Groups of runs as plain values, as rich views and on pages: their jobs, their result, and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.config.plain_yaml import read_stored
from mission_gym.errors import MissionGymError, RunStateError
from mission_gym.intervals import (
    LEVEL,
    MIN_SEEDS,
    compare_means,
    compute_band,
    compute_improvement,
    describe_seeds,
)
from mission_gym.report.charts import draw_curves
from mission_gym.report.documents import Say, find_differences
from mission_gym.report.formats import MISSING, show_amount, show_count, show_number, show_rate, show_value
from mission_gym.report.pages import make_file, make_templates
from mission_gym.report.tables import STATE_STYLES, count_states, make_pairs, make_table, show_seeds
from mission_gym.store.evals import CurvePoint, read_curve, read_last_return
from mission_gym.store.groups import ENDED, GroupDir, Job
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import format_csv_line

Document = Mapping[str, Any]
ReadStatus = Callable[[Path], Document]
_NUM_ROWS = 8  # of a curve as a table
# Paths that differ between the runs of one group, or may differ without meaning.
_OWN_PATHS = ("run.seed", "run.run_name", "run.runs_dir", "run.notes")


class RunSet(NamedTuple):
    """Runs under one name: a group, or a single run."""

    name: str
    runs: tuple[RunDir, ...]
    variants: tuple[str, ...] = ()  # of each run, if there are several: the strata


def _read_status(path: Path) -> Document:
    with suppress(RunStateError):
        return RunDir(path).read_status()
    return {}


def describe_jobs(
    group: GroupDir, jobs: Mapping[str, Job], read_status: ReadStatus = _read_status
) -> list[dict[str, Any]]:
    """The rows of `jobs status`. read_status: returns the status of the run at a path of the journal."""
    return [_describe_job(group, job, read_status) for job in jobs.values()]


def _describe_job(group: GroupDir, job: Job, read_status: ReadStatus) -> dict[str, Any]:
    status = read_status(job.run) if job.run is not None else {}
    cause, state = job.cause, str(job.state)
    if state == "starting":
        is_own, now = status.get("pid") == group.read_pid(job), status.get("state")
        if group.is_alive(job.name):
            state = "running" if job.run is not None and is_own and now != "starting" else state
        else:  # until a supervisor notices
            has_ended = is_own and now in ENDED
            state, cause = (
                (str(now), status.get("cause", "")) if has_ended else ("failed", "the process was killed")
            )
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


def view_groups_jobs(rows: Sequence[Document]) -> RenderableType:
    """`jobs status`: the jobs of each group below its name."""
    views: list[RenderableType] = []
    for name in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == name]
        views += [Text(f"{name} ({own[0]['kind']})", style="bold"), view_jobs(own), Text()]
    return Group(*views[:-1])


def view_jobs(rows: Sequence[Document]) -> RenderableType:
    """The jobs of a group: a row each, and their counts."""
    numbers = ("step", "of", "steps/s", "return", "cores", "attempts")
    table = make_table("job", "state", *numbers, "cause", numbers=numbers)
    for row in rows:
        table.add_row(
            row["name"],
            Text(row["state"], style=STATE_STYLES.get(row["state"], "")),
            show_count(row["step"]),
            show_count(row["total"]),
            show_count(row["fps"]),
            show_number(row["return_mean"]),
            show_count(row["cores"]),
            str(row["attempts"]),
            Text(row["cause"] or "", style="dim"),
        )
    return Group(table, Text(show_counts(rows), style="dim"))


def show_counts(rows: Sequence[Document]) -> str:
    """The number of jobs in each state, and their rate together."""
    counts = count_states([row["state"] for row in rows])
    rates = [row["fps"] for row in rows if row["state"] == "running" and row["fps"]]
    return f"{counts}; {show_count(sum(rates))} steps/s in total" if rates else counts


def describe_group(group: GroupDir) -> dict[str, Any]:
    """The contents of group.json, and the training curve over its runs: `estimate` is the mean, from
    `MIN_VALUES` runs on the interquartile mean, with its interval."""
    record = group.read()
    # One curve over different jobs would be meaningless.
    is_one = len({job.request.variant for job in group.read_jobs().values()}) == 1
    runs = [RunDir(Path(path)) for path in record.runs] if is_one else []
    band = compute_band(_read_curves(runs, lambda point: point.step))
    points = [
        {"step": round(point.x), "estimate": point.mean, "low": point.low, "high": point.high}
        for point in band
    ]
    return record.model_dump() | {"path": str(group.path), "curve": points}


def view_group(document: Document) -> RenderableType:
    """The result of a group: its estimate, its variants, the curve with its band, the best run."""
    variants = document.get("variants") or {}
    seeds = sum(each["seeds"] for each in variants.values())
    whole = f"{show_seeds(document)}; last evaluations of {show_amount(seeds, 'run')}"
    if document["iqm"] is None and variants:
        whole = "per job, since their environments differ"
    rows = [("group", document["path"]), ("return", whole)]
    if len(variants) > 1:
        rows += [(f"  {name}", show_seeds(each)) for name, each in variants.items()]
    rows.append(("best run", Path(document["best_run"]).name if document.get("best_run") else MISSING))
    views: list[RenderableType] = [make_pairs(rows)]
    if document["curve"] and len(variants) <= 1:
        table = make_table("step", "return", "95 % interval", numbers=("step", "return"))
        curve = document["curve"]
        for number in dict.fromkeys(round(i * (len(curve) - 1) / (_NUM_ROWS - 1)) for i in range(_NUM_ROWS)):
            point = curve[number]
            bounds = MISSING
            if point["low"] is not None:
                bounds = f"{show_number(point['low'])} to {show_number(point['high'])}"
            table.add_row(show_count(point["step"]), show_number(point["estimate"]), bounds)
        views += [Text(), table]
    return Group(*views)


def gather_runs(group: GroupDir, say: Say) -> RunSet:
    """The runs of a group that are done. They are next to its folder, even if that was moved."""
    runs, variants = [], []
    for job in group.read_jobs().values():
        if job.run is not None and job.state == "done":
            runs.append(RunDir(group.path.parent / job.run.name))
            variants.append(job.request.variant)
        else:
            say(f"{group.name}/{job.name} is left out: it is not done")
    return RunSet(group.name, tuple(runs), tuple(variants))


def list_variants(group: GroupDir, jobs: Mapping[str, Job]) -> list[RunSet]:
    """The runs of a group by variant; those of a single variant under the group's name."""
    runs: dict[str, list[RunDir]] = {}
    for job in jobs.values():
        if job.run is not None:
            runs.setdefault(job.request.variant, []).append(RunDir(job.run))
    sets = [RunSet(variant, tuple(each)) for variant, each in runs.items()]
    return [sets[0]._replace(name=group.name)] if len(sets) == 1 else sets


def compare_groups(sets: Sequence[RunSet], say: Say = lambda text: None) -> dict[str, Any]:
    """The document of `runs compare` for groups. say: reports runs that can't be read."""
    configs = [_read_values(each.runs) for each in sets]
    rows, returns = [], []
    for each, config in zip(sets, configs, strict=True):
        runs = []
        strata: dict[str, list[float]] = {}
        for run, variant in zip(each.runs, each.variants or [""] * len(each.runs), strict=True):
            try:
                last, status = read_last_return(run), run.read_status()
            except RunStateError as error:
                say(f"{run.name} is left out: {error}")
                continue
            state = status.get("state")
            runs.append({"name": run.name, "path": str(run.path), "state": state, "last_return": last})
            if last is not None:
                strata.setdefault(variant, []).append(last)
        if isinstance(config.get("env.env_id"), list):  # returns of several environments have no mean
            strata = {}
        of_one = each.runs if len(set(each.variants)) <= 1 else ()  # as in describe_group
        curves = {
            "by_step": compute_band(_read_curves(of_one, lambda point: point.step)),
            "by_time": compute_band(_read_curves(of_one, lambda point: point.seconds)),
        }
        bands = {key: [point._asdict() for point in band] for key, band in curves.items()}
        rows.append(
            {"name": each.name, "runs": runs} | describe_seeds(list(strata.values())) | {"curves": bands}
        )
        returns.append([value for values in strata.values() for value in values])
    improvements = [
        {"of": each.name, "over": sets[0].name} | _compare(own, returns[0], len(sets) - 1)
        for each, own in zip(sets[1:], returns[1:], strict=True)
    ]
    return {"groups": rows, "improvement": improvements, "differences": find_differences(configs)}


def _compare(ours: Sequence[float], theirs: Sequence[float], num_comparisons: int) -> dict[str, float | None]:
    """One of several comparisons with the same group. Bonferroni: of equal groups, at least one is called
    better or worse in at most 5 % of documents."""
    p_value = compare_means(ours, theirs)
    return {
        "probability": compute_improvement(ours, theirs),
        "difference": mean(ours) - mean(theirs) if ours and theirs else None,
        "p_value": None if p_value is None else min(1.0, num_comparisons * p_value),
    }


def _read_values(runs: Sequence[RunDir]) -> dict[str, Any]:
    """The config values of a group; a list for each path in which its runs differ."""
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
    table.add_row("return", *(show_seeds(group) for group in groups))
    compared = ["", *(show_comparison(each) for each in document["improvement"])]
    table.add_row(f"compared with {groups[0]['name']}", *compared)
    for path, values in document["differences"].items():
        table.add_row(path, *(show_value(value) for value in values))
    return table


def show_comparison(found: Document) -> str:
    """Whether the means differ, by a permutation test, and the share of pairs that are higher."""
    p_value = found["p_value"]
    if found["probability"] is None:
        return MISSING
    if p_value is None:
        return f"too few seeds: a comparison needs {MIN_SEEDS} on each side"
    word = "no difference shown"
    if p_value < LEVEL:
        word = "better" if found["difference"] > 0 else "worse"
    return f"{word}: p = {p_value:.2g}, higher in {show_rate(found['probability'])} of pairs"


def make_comparison_csv(document: Document) -> str:
    """One line per run of a comparison of groups."""
    lines = [format_csv_line(("group", "run", "state", "last_return", "path"))]
    for group in document["groups"]:
        for run in group["runs"]:
            cells = (group["name"], run["name"], run["state"], run["last_return"], run["path"])
            lines.append(format_csv_line(cells))
    return "".join(lines)


def make_group_html(title: str, document: Document) -> str:
    """The page of a comparison."""
    return make_file(title, render_groups(make_templates(), document))


def render_groups(
    templates: Environment, document: Document, *, title: str = "Groups", with_charts: bool = True
) -> str:
    """A comparison as a part of a page: estimates, curves with bands, and differences."""
    charts = [
        _draw_bands("return by steps", document, "by_step"),
        _draw_bands("return by seconds of training", document, "by_time"),
    ]
    charts = charts if with_charts else []
    return templates.get_template("panels/groups.html").render(
        document, title=title, charts=charts, show_seeds=show_seeds, show_comparison=show_comparison
    )


def _draw_bands(title: str, document: Document, key: str) -> Markup:
    curves = {group["name"]: group["curves"][key] for group in document["groups"]}
    return draw_curves(
        title,
        {name: [(point["x"], point["mean"]) for point in curve] for name, curve in curves.items()},
        bands={
            name: [(p["x"], p["low"], p["high"]) for p in curve if p["low"] is not None]
            for name, curve in curves.items()
        },
    )
