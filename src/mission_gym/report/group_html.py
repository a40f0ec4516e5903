"""Groups of runs as one HTML file: estimates, curves with bands by steps and by time, what differs."""

from __future__ import annotations

from html import escape

from mission_gym.report.curves import draw_curves
from mission_gym.report.formats import show_number, show_rate, show_value
from mission_gym.report.groups import Document, list_bands
from mission_gym.report.html import make_page, make_rows

_CAPTION = "Interquartile means of the last evaluations with 95 % stratified bootstrap intervals"


def make_group_html(title: str, document: Document) -> str:
    """The text of the page; the document is that of `compare_groups`."""
    groups = document["groups"]
    charts = [
        _draw("return by steps", document, "by_step"),
        _draw("return by seconds of training", document, "by_time"),
    ]
    return make_page(
        title,
        [
            f"<h1>{escape(title)}</h1>",
            make_rows(
                ("", "runs", "IQM", "low", "high"),
                [
                    (group["name"], str(len(group["runs"])), *(show_number(group[key]) for key in _ESTIMATE))
                    for group in groups
                ],
                _CAPTION,
            ),
            f"<h2>Curves of training</h2><div class='charts'>{''.join(charts)}</div>",
            _make_improvements(document),
            _make_differences(document),
            "<h2>Runs</h2>"
            + make_rows(
                ("group", "run", "state", "last evaluation"),
                [
                    (group["name"], run["name"], run["state"] or "n/a", show_number(run["last_return"]))
                    for group in groups
                    for run in group["runs"]
                ],
            ),
        ],
    )


_ESTIMATE = ("iqm", "low", "high")


def _draw(title: str, document: Document, key: str) -> str:
    bands = list_bands(document, key)
    return draw_curves(
        title,
        {name: [(point.x, point.mean) for point in band] for name, band in bands.items()},
        bands={name: [(point.x, point.low, point.high) for point in band] for name, band in bands.items()},
    )


def _make_improvements(document: Document) -> str:
    rows = [
        (
            f"{each['of']} over {each['over']}",
            *(show_rate(each[key]) for key in ("probability", "low", "high")),
        )
        for each in document["improvement"]
    ]
    return f"<h2>Probability of improvement</h2>{make_rows(('', 'is', 'low', 'high'), rows)}" if rows else ""


def _make_differences(document: Document) -> str:
    names = [group["name"] for group in document["groups"]]
    rows = [(path, *map(show_value, values)) for path, values in document["differences"].items()]
    return f"<h2>Values that differ</h2>{make_rows(('', *names), rows)}" if rows else ""
