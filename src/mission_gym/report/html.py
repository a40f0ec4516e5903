"""The report of runs as one HTML file: curves, results, pictures, comparison, and the panels of each run.

Everything is inside the file and nothing is fetched. It follows the reader's light or dark setting.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup

from mission_gym.report.curves import Points, draw_curves
from mission_gym.report.documents import compare_runs, name_apart
from mission_gym.report.formats import show_count
from mission_gym.report.group_html import render_groups
from mission_gym.report.groups import RunSet, compare_groups
from mission_gym.report.pages import describe_panels, list_films, make_templates, render_panels
from mission_gym.report.sweep_html import render_sweep
from mission_gym.store.evals import SELECT, read_baselines, read_evals
from mission_gym.store.groups import GroupDir
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog

Row = Mapping[str, Any]
_KINDS = {".gif": "image/gif", ".png": "image/png", ".mp4": "video/mp4"}
_LARGEST_BYTES = 8 << 20  # of a film that becomes part of the file unasked
_NUM_POINTS = 600  # of a curve
_PANELS = ("evaluations", "time", "timeline", "failures", "plan", "config", "lineage")


class Picture(NamedTuple):
    """A GIF, PNG or MP4 that becomes part of the file."""

    path: Path
    caption: str


def make_html(
    runs: Sequence[RunDir],
    results: Mapping[str, Row] | None = None,
    pictures: Iterable[Picture] | None = None,
    *,
    groups: Sequence[RunSet] = (),
    sweeps: Sequence[GroupDir] = (),
    verdict: str = "",
) -> str:
    """The text of the report. results: evaluations by the name of who played; pictures: without them, those
    films of the runs that are small enough; groups: what some of the runs belong to, with bands over them;
    sweeps: searches, with their trials."""
    streams = [MetricsLog.read(run.metrics_jsonl) for run in runs]
    names = name_apart(runs)
    templates = make_templates()
    chosen = _find_films(runs, names) if pictures is None else pictures
    one, several = (runs[0], None) if len(runs) == 1 else (None, compare_runs(list(runs), lambda text: None))
    return templates.get_template("report.html").render(
        title=one.name
        if one
        else f"{groups[0].name}, {len(runs)} runs"
        if len(groups) == 1
        else f"{len(runs)} runs",
        verdict=verdict,
        sweeps=Markup("").join(Markup(render_sweep(templates, each)) for each in sweeps),
        groups=render_groups(templates, compare_groups(groups, lambda text: None)) if groups else "",
        charts=_draw_charts(one, streams[0])
        if one
        else _draw_comparison(dict(zip(names, streams, strict=True))),
        results=results or {},
        num_episodes=min((result["episodes"] for result in (results or {}).values()), default=0),
        pictures=[(picture.caption, _embed(picture.path)) for picture in chosen],
        comparison=templates.get_template("panels/compare.html").render(several, num_left_out=0)
        if several
        else "",
        runs=[
            _describe(run, name, rows, templates)
            for run, name, rows in zip(runs, names, streams, strict=True)
        ],
    )


def _describe(run: RunDir, name: str, rows: Sequence[Row], templates: Environment) -> dict[str, Any]:
    status = run.read_status()
    panels = describe_panels(run, rows)
    cause = (status.get("cause") or "").partition("\n")[0]
    return {
        "name": name,
        "head": f"{show_count(status.get('step'))} steps, {status.get('state')}: {cause}",
        "panels": render_panels(templates, {each: panels[each] for each in _PANELS}),
    }


def _draw_charts(run: RunDir, rows: Sequence[Row]) -> list[Markup]:
    """The curves of one run, with its evaluations and baselines."""
    progress = [row for row in rows if row["event"] == "progress"]
    evals = [result for result in read_evals(run) if result["suite"] == SELECT]
    baselines, predicted = read_baselines(run), run.read_status().get("predicted_fps")
    returns = [
        _bound(each["step"], [each.get(f"return_{key}") for key in ("mean", "low", "high")]) for each in evals
    ]
    names = dict.fromkeys(
        key.removeprefix("outcome/") for row in progress for key in row if key.startswith("outcome/")
    )
    played = {
        name: [
            _bound(
                each["step"],
                [100.0 * rate[key] if rate[key] is not None else None for key in ("rate", "low", "high")],
            )
            for each in evals
            if (rate := (each.get("outcomes") or {}).get(name))
        ]
        for name in names
    }
    begun = _list_stages(rows)
    return [
        draw_curves(
            "return",
            {"training": _pick(progress, "rollout/ep_rew_mean")},
            marks={"evaluation, 95 %": returns},
            levels={
                name: each["return_mean"]
                for name, each in baselines.items()
                if each["return_mean"] is not None
            },
            beginnings=begun,
        ),
        draw_curves(
            "outcomes in training",
            {name: _pick(progress, f"outcome/{name}", 100.0) for name in names},
            unit=" %",
            span=(0.0, 100.0),
            beginnings=begun,
        ),
        draw_curves(
            "outcomes in evaluations, 95 %", {}, marks=played, unit=" %", span=(0.0, 100.0), beginnings=begun
        ),
        draw_curves(
            "steps/s",
            {"rate": _compute_rates(progress)},
            span=(0.0, 1.0),
            levels={} if predicted is None else {"predicted": predicted},
            beginnings=begun,
        ),
    ]


def _bound(step: int, values: Sequence[float | None]) -> tuple[float, float, float, float]:
    """A point with its interval; what is missing is not drawn."""
    mean, low, high = (math.nan if value is None else float(value) for value in values)
    return step, mean, mean if math.isnan(low) else low, mean if math.isnan(high) else high


def _list_stages(rows: Sequence[Row]) -> list[tuple[float, str]]:
    """Where the stages of a curriculum began, each with its name."""
    names: list[str] = next((row["stages"] for row in rows if row.get("stages")), [])
    first = next((row for row in rows if "curriculum/stage" in row), None)
    if not names or first is None:
        return []
    began = first["step"] - first["curriculum/stage_steps"]
    begun = [(began, names[int(first["curriculum/stage"]) - 1])]
    return begun + [(row["step"], row["name"]) for row in rows if row["event"] == "stage"]


def _draw_comparison(streams: Mapping[str, Sequence[Row]]) -> list[Markup]:
    """A curve of each run: its return in training and in evaluations."""
    quantities = {
        "return in training": ("progress", "rollout/ep_rew_mean"),
        "return in evaluations": ("eval", "return_mean"),
    }
    return [
        draw_curves(
            title,
            {
                name: _pick([row for row in rows if row["event"] == event], key)
                for name, rows in streams.items()
            },
        )
        for title, (event, key) in quantities.items()
    ]


def _pick(rows: Sequence[Row], key: str, scale: float = 1.0) -> Points:
    """The points of a number; of a long run some hundreds of them, and the last."""
    points = [(row["step"], scale * row[key]) for row in rows if row.get(key) is not None]
    every = -(-len(points) // _NUM_POINTS) or 1
    return points if every == 1 else [*points[:-1:every], points[-1]]


def _compute_rates(rows: Sequence[Row], num_points: int = 60) -> Points:
    """Steps a second between rows, evaluations included; of some tens of stretches, as rows come often."""
    every = max(1, len(rows) // num_points)
    chosen = rows[::every]
    points = []
    for before, after in pairwise(chosen):
        seconds = after["time/time_elapsed"] - before["time/time_elapsed"]
        if seconds > 0:
            points.append((after["step"], (after["step"] - before["step"]) / seconds))
    return points


def _find_films(runs: Sequence[RunDir], names: Sequence[str]) -> list[Picture]:
    """The films that lie in runs; one that is there as a GIF and as an MP4 is shown once."""
    found: dict[tuple[str, str], Picture] = {}
    for run, name in zip(runs, names, strict=True):
        for film in list_films(run):
            path = run.path / film["name"]
            if path.stat().st_size <= _LARGEST_BYTES:
                found.setdefault((name, path.stem), Picture(path, f"{name}: {film['name']}"))
    return list(found.values())


def _embed(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f"data:{_KINDS[path.suffix]};base64,{data}"
