"""Groups of runs on a page: estimates, curves with bands by steps and by time, what differs."""

from __future__ import annotations

from jinja2 import Environment
from markupsafe import Markup

from mission_gym.report.curves import draw_curves
from mission_gym.report.groups import Document, list_bands
from mission_gym.report.pages import make_file, make_templates


def make_group_html(title: str, document: Document) -> str:
    """The text of a whole page; the document is that of `compare_groups`."""
    return make_file(title, render_groups(make_templates(), document))


def render_groups(templates: Environment, document: Document) -> str:
    """The same as a part of a page."""
    charts = [
        _draw("return by steps", document, "by_step"),
        _draw("return by seconds of training", document, "by_time"),
    ]
    return templates.get_template("panels/groups.html").render(document, charts=charts)


def _draw(title: str, document: Document, key: str) -> Markup:
    bands = list_bands(document, key)
    return draw_curves(
        title,
        {name: [(point.x, point.mean) for point in band] for name, band in bands.items()},
        bands={name: [(point.x, point.low, point.high) for point in band] for name, band in bands.items()},
    )
