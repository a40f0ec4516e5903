"""A sweep on a page: the winner on fresh seeds, the search trial by trial, what matters, and each field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from mission_gym.report.curves import draw_curves
from mission_gym.report.formats import show_value
from mission_gym.report.group_html import render_groups
from mission_gym.report.groups import compare_groups
from mission_gym.report.pages import make_file, make_templates
from mission_gym.report.slices import draw_bars, draw_points
from mission_gym.report.sweeps import describe_sweep, list_retested
from mission_gym.store.groups import GroupDir
from mission_gym.store.sweeps import DEFAULT

Document = Mapping[str, Any]
_LARGE = 1e300  # no value of a field


def make_sweep_html(group: GroupDir) -> str:
    """The text of a whole page."""
    templates = make_templates()
    sets = list_retested(group)
    compared = render_groups(templates, compare_groups(sets, lambda text: None)) if sets else ""
    return make_file(group.name, render_sweep(templates, group) + compared)


def render_sweep(templates: Environment, group: GroupDir) -> str:
    """The same as a part of a page, without the runs."""
    document = describe_sweep(group)
    axes = [axis | {"name": axis["path"].split(".")[1]} for axis in document["question"]["axes"]]
    charts = [_draw_history(document), _draw_retest(document)]
    charts.append(draw_bars("importance of each field", document["importance"]))
    charts += [_draw_slice(document, axis) for axis in axes]
    return templates.get_template("panels/sweep.html").render(
        document, axes=axes, charts=[chart for chart in charts if chart]
    )


def _draw_history(document: Document) -> Markup:
    told = [row for row in document["trials"] if row["score"] is not None]
    best: list[tuple[float, float]] = []
    for row in told:
        best.append((row["number"], max([row["score"], *(score for _, score in best[-1:])])))
    marks = [(row["number"], row["score"], row["score"], row["score"]) for row in told]
    return draw_curves("lower bound by trial", {"best so far": best}, marks={"trial": marks})


def _draw_retest(document: Document) -> Markup:
    """Each setting that was trained again, with its interval."""
    marks = {}
    for place, each in enumerate(document["candidates"], 1):
        if each["iqm"] is not None:
            low, high = (each["iqm"] if each[key] is None else each[key] for key in ("low", "high"))
            name = DEFAULT if each["source"] == DEFAULT else f"trial {each['trial']}"
            marks[name] = [(float(place), each["iqm"], low, high)]
    return draw_curves(f"{document['question']['measure']} on fresh seeds, 95 %", {}, marks=marks)


def _draw_slice(document: Document, axis: Document) -> Markup:
    told = [row for row in document["trials"] if row["score"] is not None]
    title = f"lower bound by {axis['name']}"
    if axis["choices"]:
        known = {show_value(choice): place for place, choice in enumerate(axis["choices"])}
        named = [(show_value(row["values"].get(axis["name"])), row["score"]) for row in told]
        points = [(float(known[name]), score) for name, score in named if name in known]
        return draw_points(title, points, is_log=False, names=list(known))
    is_log = axis["scale"] in ("log", "power")
    values = [(row["values"].get(axis["name"]), row["score"]) for row in told]
    points = [
        (float(value), score)
        for value, score in values
        if isinstance(value, int | float) and abs(value) < _LARGE and not (is_log and value <= 0)
    ]
    return draw_points(title, points, is_log=is_log)
