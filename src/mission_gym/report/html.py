"""The report of runs as one HTML file: curves, results, videos, a comparison, and the panels of each run.

The file is self-contained and fetches nothing. It follows the reader's light or dark setting.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup

from mission_gym.report.charts import Points, color_outcomes, draw_curves
from mission_gym.report.documents import best_evaluation, compare_runs, unique_names
from mission_gym.report.formats import show_amount, show_count
from mission_gym.report.groups import RunSet, compare_groups, render_groups
from mission_gym.report.pages import describe_panels, list_videos, make_templates, render_panels
from mission_gym.report.sweeps import render_sweep
from mission_gym.report.tables import show_choice, show_interval, show_outcome
from mission_gym.store.evals import SELECT, read_baselines, read_evals
from mission_gym.store.groups import GroupDir
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog

Row = Mapping[str, Any]
_TYPES = {".gif": "image/gif", ".mp4": "video/mp4"}
_LARGEST_BYTES = 8 << 20  # of a video that is included by default
_NUM_POINTS = 600  # of a curve
_NUM_RATES = 60
_PANELS = ("evaluations", "time", "timeline", "failures", "plan", "config", "lineage")


class Video(NamedTuple):
    """A GIF or MP4 to include."""

    path: Path
    caption: str


def make_html(
    runs: Sequence[RunDir],
    results: Mapping[str, Row] | None = None,
    videos: Iterable[Video] | None = None,
    *,
    groups: Sequence[RunSet] = (),
    sweeps: Sequence[GroupDir] = (),
    verdict: str = "",
) -> str:
    """The text of the report. results: evaluations by player. videos: by default those of the runs that are
    small enough. groups: of some of the runs, with bands over them. sweeps: with their trials."""
    streams = [MetricsLog.read(run.metrics_jsonl) for run in runs]
    names = unique_names(runs)
    templates = make_templates()
    if len(runs) == 1:
        title, comparison, charts = runs[0].name, "", _draw_charts(runs[0], streams[0])
        verdict = verdict or _describe_result(runs[0])
    else:
        title = (
            f"{groups[0].name}, {show_amount(len(runs), 'run')}"
            if len(groups) == 1
            else show_amount(len(runs), "run")
        )
        document = compare_runs(list(runs), lambda text: None)
        comparison = templates.get_template("panels/compare.html").render(document, num_left_out=0)
        charts = _draw_comparison(dict(zip(names, streams, strict=True)))
    chosen = _find_videos(runs, names) if videos is None else videos
    return templates.get_template("report.html").render(
        title=title,
        verdict=verdict,
        sweeps=Markup("").join(Markup(render_sweep(templates, each)) for each in sweeps),
        groups=render_groups(templates, compare_groups(groups)) if groups else "",
        charts=charts,
        diagnostics=_draw_diagnostics(streams[0]) if len(runs) == 1 else [],
        results=results or {},
        num_episodes=min((result["episodes"] for result in (results or {}).values()), default=0),
        videos=[(video.caption, _embed(video.path)) for video in chosen],
        comparison=comparison,
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
        "about": render_panels(templates, {"about": panels["about"]})["about"],
        "panels": render_panels(templates, {each: panels[each] for each in _PANELS}),
    }


def _describe_result(run: RunDir) -> str:
    """The best evaluation of a run."""
    best = best_evaluation(run)
    if best is None:
        return "not evaluated"
    outcomes = (best.get("outcomes") or {}).items()
    rates = [f", {name} {show_outcome(rate)}" for name, rate in outcomes if rate["rate"]]
    shown = f"return {show_interval(best, 'return')}{''.join(rates)}"
    return f"best evaluation: {shown} at step {show_count(best['step'])}{show_choice(best)}"


def _draw_diagnostics(rows: Sequence[Row]) -> list[Markup]:
    """The metrics of the learner that change."""
    progress = [row for row in rows if row["event"] == "progress"]
    keys = dict.fromkeys(key for row in progress for key in row if key.startswith("train/"))
    curves = {key: _pick(progress, key) for key in keys}
    return [
        draw_curves(key.removeprefix("train/").replace("_", " "), {key: curve})
        for key, curve in curves.items()
        if len({value for _, value in curve}) > 1
    ]


def _draw_charts(run: RunDir, rows: Sequence[Row]) -> list[Markup]:
    """The curves of one run, with its evaluations and baselines."""
    progress = [row for row in rows if row["event"] == "progress"]
    evals = [result for result in read_evals(run) if result["suite"] == SELECT]
    baselines, predicted = read_baselines(run), run.read_status().get("predicted_fps")
    returns = [
        _mark(each["step"], [each.get(f"return_{key}") for key in ("mean", "low", "high")]) for each in evals
    ]
    keys = sorted({key for row in progress for key in row if key.startswith("outcome/")})
    declared = run.read_status().get("outcomes") or {}
    known = list(dict.fromkeys([*declared, *(key.removeprefix("outcome/") for key in keys)]))
    main: str | None = next((row["main_outcome"] for row in rows if "main_outcome" in row), None)
    colors = color_outcomes(known, main)
    names = list(colors)
    rates = {
        name: [
            _mark(each["step"], [rate[key] for key in ("rate", "low", "high")], 100.0)
            for each in evals
            if (rate := (each.get("outcomes") or {}).get(name))
        ]
        for name in names
    }
    levels = {
        name: each["return_mean"] for name, each in baselines.items() if each["return_mean"] is not None
    }
    draw = partial(draw_curves, beginnings=_list_stages(rows))
    draw_percent = partial(draw, unit=" %", span=(0.0, 100.0))
    terms = sorted({key for row in progress for key in row if key.startswith("reward_share/")})
    shares = {key.removeprefix("reward_share/"): _pick(progress, key, 100.0) for key in terms}
    in_training = {name: _pick(progress, f"outcome/{name}", 100.0) for name in names}
    expected = {} if predicted is None else {"predicted": predicted}
    return [
        draw(
            "return",
            {"training": _pick(progress, "rollout/ep_rew_mean")},
            marks={"evaluation, 95 %": returns},
            levels=levels,
        ),
        draw_percent("outcomes in training", in_training, colors=colors),
        draw_percent("outcomes in evaluations, 95 %", {}, marks=rates, colors=colors),
        draw_percent("shares of the reward", shares),
        draw("steps/s", {"rate": _compute_rates(progress)}, span=(0.0, 1.0), levels=expected),
    ]


def _mark(step: int, values: Sequence[float | None], scale: float = 1.0) -> tuple[float, float, float, float]:
    """A point with its interval; missing values are not drawn."""
    mean, low, high = (math.nan if value is None else scale * value for value in values)
    return step, mean, mean if math.isnan(low) else low, mean if math.isnan(high) else high


def _list_stages(rows: Sequence[Row]) -> list[tuple[float, str]]:
    """The step at which each stage of a curriculum began, and its name."""
    names: list[str] = next((row["stages"] for row in rows if row.get("stages")), [])
    first = next((row for row in rows if "curriculum/stage" in row), None)
    if not names or first is None:
        return []
    begun = [(first["step"] - first["curriculum/stage_steps"], names[int(first["curriculum/stage"]) - 1])]
    return begun + [(row["step"], row["name"]) for row in rows if row["event"] == "stage"]


def _draw_comparison(streams: Mapping[str, Sequence[Row]]) -> list[Markup]:
    """The return of each run in training and in evaluations."""

    def draw(title: str, event: str, key: str) -> Markup:
        chosen = {name: [row for row in rows if row["event"] == event] for name, rows in streams.items()}
        return draw_curves(title, {name: _pick(rows, key) for name, rows in chosen.items()})

    return [
        draw("return in training", "progress", "rollout/ep_rew_mean"),
        draw("return in evaluations", "eval", "return_mean"),
    ]


def _pick(rows: Sequence[Row], key: str, scale: float = 1.0) -> Points:
    """The points of a metric; of a long run some hundreds of them, and the last."""
    points = [(row["step"], scale * row[key]) for row in rows if row.get(key) is not None]
    every = -(-len(points) // _NUM_POINTS) or 1
    return points if every == 1 else [*points[:-1:every], points[-1]]


def _compute_rates(rows: Sequence[Row]) -> Points:
    """Steps per second, including evaluations, over some tens of intervals."""
    points = []
    for before, after in pairwise(rows[:: max(1, len(rows) // _NUM_RATES)]):
        seconds = after["time/time_elapsed"] - before["time/time_elapsed"]
        if seconds > 0:
            points.append((after["step"], (after["step"] - before["step"]) / seconds))
    return points


def _find_videos(runs: Sequence[RunDir], names: Sequence[str]) -> list[Video]:
    """The videos of runs; one that exists as a GIF and as an MP4 is included once."""
    found: dict[tuple[str, str], Video] = {}
    for run, name in zip(runs, names, strict=True):
        for video in list_videos(run):
            path = run.path / video["name"]
            if path.stat().st_size <= _LARGEST_BYTES:
                found.setdefault((name, path.stem), Video(path, f"{name}: {video['name']}"))
    return list(found.values())


def _embed(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f"data:{_TYPES[path.suffix]};base64,{data}"
