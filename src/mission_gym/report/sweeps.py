"""Sweeps as plain values, as rich views and on pages: trials, importance, and the winner on fresh seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.report.charts import draw_bars, draw_curves, draw_points
from mission_gym.report.formats import MISSING, show_duration, show_number, show_rate, show_value
from mission_gym.report.groups import RunSet, compare_groups, render_groups
from mission_gym.report.pages import make_file, make_templates
from mission_gym.report.tables import make_pairs, make_table
from mission_gym.store.groups import GroupDir
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import BEST, DEFAULT, is_retest, label_trial, name_retest, read_sweep

Document = Mapping[str, Any]
_NUM_TRIALS = 60  # rows of a table
_STYLES = {"complete": "green", "failed": "bold red", "pruned": "yellow", "running": "cyan"}
_LARGE = 1e300  # larger than any value of a field


def describe_sweep(group: GroupDir) -> dict[str, Any]:
    """The document of `sweep` and `sweep show`: the contents of group.json and sweep.json."""
    record, best = read_sweep(group), group.path / BEST
    own = {"best": None, DEFAULT: None} | group.read().model_dump() | {"path": str(group.path)}
    preset = best.read_text("utf-8", "replace") if record.is_done and best.is_file() else None
    return own | record.model_dump() | {"preset": preset}


def list_retested(group: GroupDir) -> list[RunSet]:
    """The runs on fresh seeds that are done, by variant; they are next to the group's folder."""
    runs: dict[str, list[RunDir]] = {}
    for job in group.read_jobs().values():
        if job.run is not None and job.state == "done" and is_retest(job):
            run = RunDir(group.path.parent / job.run.name)
            runs.setdefault(job.request.variant, []).append(run)
    return [RunSet(variant, tuple(each)) for variant, each in runs.items()]


def gather_sweep(group: GroupDir) -> list[RunSet]:
    """The runs that stand for a sweep in comparisons: the default and the winner on fresh seeds."""
    record = read_sweep(group)
    names = {name_retest(each.trial): DEFAULT for each in record.candidates if each.source == DEFAULT}
    if record.best_trial is not None:
        names.setdefault(name_retest(record.best_trial), "best")
    retested = [each for each in list_retested(group) if each.name in names]
    return [each._replace(name=f"{group.name} {names[each.name]}") for each in retested]


def view_sweep(document: Document) -> RenderableType:
    """The trials, the importance of each field, and the settings that were trained again."""
    question = document["question"]
    names = [axis["path"].split(".")[1] for axis in question["axes"]]
    views: list[RenderableType] = [_view_trials(document, names)]
    if document["importance"]:
        rows = [(name, show_rate(share)) for name, share in document["importance"].items()]
        views += [Text("\nimportance of each field", style="bold"), make_pairs(rows)]
    if document["candidates"]:
        seeds = question["retest_seeds"]
        head = f"\ntrained again on seeds {seeds[0]} to {seeds[-1]}: {question['measure']} on unused episodes"
        views += [Text(head, style="bold"), _view_candidates(document, names)]
    if document["verdict"]:
        views.append(Text(f"\n{document['verdict']}", style="bold"))
    if document["preset"]:
        views.append(Text(f"\n{document['preset'].rstrip()}"))
    return Group(*views)


def _view_trials(document: Document, names: list[str]) -> RenderableType:
    trials = document["trials"]
    numbers = ("trial", "lower bound", "seconds", *names)
    table = make_table("trial", "from", "state", "lower bound", "seconds", *names, "cause", numbers=numbers)
    for row in trials[-_NUM_TRIALS:]:
        table.add_row(
            str(row["number"]), row["source"], Text(row["state"], style=_STYLES.get(row["state"], "")),
            show_number(row["score"]), show_number(row["seconds"]),
            *(show_value(row["values"].get(name, MISSING)) for name in names),
            Text(row["cause"].partition("\n")[0], style="dim"),
        )  # fmt: skip
    states = [row["state"] for row in trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in _STYLES if state in states)
    left_out = f"; the last {_NUM_TRIALS} are shown" if len(trials) > _NUM_TRIALS else ""
    total = f"{len(trials)} trials: {counts}{left_out}; {show_duration(document['spent_s'])} spent"
    return Group(table, Text(total, style="dim"))


def _view_candidates(document: Document, names: list[str]) -> RenderableType:
    numbers = ("trial", "mean", "seeds", *names)
    table = make_table("trial", "from", "mean", "by seed", "seeds", *names, "failed", numbers=numbers)
    for each in document["candidates"]:
        is_best = each["trial"] == document["best_trial"]
        table.add_row(
            str(each["trial"]), each["source"],
            show_number(each["mean"]), ", ".join(map(show_number, each["scores"])), str(each["seeds"]),
            *(show_value(each["values"].get(name, MISSING)) for name in names),
            Text("; ".join(cause.partition("\n")[0] for cause in each["causes"]), style="dim"),
            style="bold" if is_best else "",
        )  # fmt: skip
    return table


def make_sweep_html(group: GroupDir) -> str:
    """The page of a sweep."""
    templates = make_templates()
    sets = list_retested(group)
    compared = render_groups(templates, compare_groups(sets)) if sets else ""
    return make_file(group.name, render_sweep(templates, group) + compared)


def render_sweep(templates: Environment, group: GroupDir) -> str:
    """A sweep as a part of a page, without its runs: the winner, the trials, the importance of each field."""
    document = describe_sweep(group)
    axes = [axis | {"name": axis["path"].split(".")[1]} for axis in document["question"]["axes"]]
    scored = [row for row in document["trials"] if row["score"] is not None]
    charts = [
        _draw_history(scored), _draw_retest(document),
        draw_bars("importance of each field", document["importance"]),
        *(_draw_slice(scored, axis) for axis in axes),
    ]  # fmt: skip
    return templates.get_template("panels/sweep.html").render(
        document, axes=axes, charts=filter(None, charts)
    )


def _draw_history(scored: list[Document]) -> Markup:
    """The score of each trial, and the best so far."""
    best: list[tuple[float, float]] = []
    for row in scored:
        best.append((row["number"], max([row["score"], *(score for _, score in best[-1:])])))
    marks = [(row["number"], row["score"], row["score"], row["score"]) for row in scored]
    return draw_curves("lower bound by trial", {"best so far": best}, marks={"trial": marks})


def _draw_retest(document: Document) -> Markup:
    """Each setting that was trained again, with the range of its seeds."""
    scored = [each for each in document["candidates"] if each["scores"]]
    names = [label_trial(each["trial"], each["source"]) for each in scored]
    marks = {
        name: [(place, each["mean"], min(each["scores"]), max(each["scores"]))]
        for place, (name, each) in enumerate(zip(names, scored, strict=True))
    }
    title = f"{document['question']['measure']} on fresh seeds: mean and range"
    return draw_curves(title, {}, marks=marks, names=names)


def _draw_slice(scored: list[Document], axis: Document) -> Markup:
    """The scores over one field."""
    title = f"lower bound by {axis['name']}"
    values = [(row["values"].get(axis["name"]), row["score"]) for row in scored]
    if axis["choices"]:
        known = {show_value(choice): float(place) for place, choice in enumerate(axis["choices"])}
        named = [(show_value(value), score) for value, score in values]
        points = [(known[name], score) for name, score in named if name in known]
        return draw_points(title, points, is_log=False, names=list(known))
    is_log = axis["scale"] in ("log", "power")
    points = [
        (float(value), score)
        for value, score in values
        if isinstance(value, int | float) and abs(value) < _LARGE and not (is_log and value <= 0)
    ]
    return draw_points(title, points, is_log=is_log)
