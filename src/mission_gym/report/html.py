"""The report of a run as one HTML file: curves, results, pictures, plan, phases and verdict.

Everything is inside the file and nothing is fetched. It follows the reader's light or dark setting.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.report.curves import Points, draw_curves
from mission_gym.report.formats import show_count, show_number
from mission_gym.report.tables import list_verdict, show_interval, show_outcome
from mission_gym.report.timeline import make_png
from mission_gym.report.timing import list_machine, list_phases, sum_up
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog

Row = Mapping[str, Any]
_KINDS = {".gif": "image/gif", ".png": "image/png"}


class Picture(NamedTuple):
    """A GIF or PNG that becomes part of the file."""

    path: Path
    caption: str


def make_html(
    run: RunDir, results: Mapping[str, Row], pictures: Iterable[Picture] = (), *, verdict: str = ""
) -> str:
    """The text of the report; results are evaluations by the name of who played."""
    rows = MetricsLog.read(run.metrics_jsonl)
    plan: Row = next((row["time/plan"] for row in rows if row["event"] == "plan"), {"facts": [], "notes": []})
    status = run.read_status()
    head = f"{show_count(status.get('step'))} steps, {status.get('state')}: {status.get('cause', '')}"
    sections = [
        f"<h1>{escape(run.name)}</h1><p class='quiet'>{escape(head)}</p>",
        f"<p class='verdict'>{escape(verdict)}</p>" if verdict else "",
        f"<h2>Curves over steps</h2><div class='charts'>{''.join(_draw_charts(rows))}</div>",
        f"<h2>Results</h2>{_make_results(results)}" if results else "",
        "".join(f"<h2>{escape(picture.caption)}</h2>{_embed(picture)}" for picture in pictures),
        f"<h2>Plan</h2>{make_rows((), [(f['name'], f['value'], f['reason']) for f in plan['facts']])}",
        "".join(f"<p class='quiet'>{escape(note)}</p>" for note in plan["notes"]),
        f"<h2>Where the time went</h2>{_make_phases(run.name, rows)}",
    ]
    return make_page(run.name, sections)


def make_page(title: str, sections: Iterable[str]) -> str:
    """A whole page of sections."""
    body = "\n".join(section for section in sections if section)
    title, style = escape(title), Path(__file__).with_name("page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>\n{style}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _draw_charts(rows: Sequence[Row]) -> list[str]:
    progress = [row for row in rows if row["event"] == "progress"]
    evals = [row for row in rows if row["event"] == "eval"]
    returns = {
        "training": _pick(progress, "rollout/ep_rew_mean"),
        "evaluation": _pick(evals, "return_mean"),
    }
    names = dict.fromkeys(key for row in progress for key in row if key.startswith("outcome/"))
    outcomes = {key.removeprefix("outcome/"): _pick(progress, key, 100.0) for key in names}
    charts = [draw_curves("return", returns)]
    if outcomes:
        charts.append(draw_curves("outcomes in training", outcomes, unit=" %", span=(0.0, 100.0)))
        played: dict[str, list[tuple[float, float]]] = {}
        for row in evals:
            for name, rate in row["outcomes"].items():
                played.setdefault(name, []).append((row["step"], 100.0 * rate["rate"]))
        charts.append(draw_curves("outcomes in evaluation", played, unit=" %", span=(0.0, 100.0)))
    charts.append(draw_curves("steps/s", {"rate": _compute_rates(progress)}, span=(0.0, 1.0)))
    return charts


def _pick(rows: Sequence[Row], key: str, scale: float = 1.0) -> Points:
    return [(row["step"], scale * row[key]) for row in rows if row.get(key) is not None]


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


def _make_results(results: Mapping[str, Row]) -> str:
    outcomes = dict.fromkeys(name for result in results.values() for name in result["outcomes"])
    rows = []
    for name, result in results.items():
        rates = (result["outcomes"].get(outcome) for outcome in outcomes)
        shown = [show_outcome(rate) if rate else "n/a" for rate in rates]
        rows.append((name, *shown, show_interval(result, "return"), show_number(result["length_mean"])))
    counts = {result["episodes"] for result in results.values()}
    caption = f"{show_count(min(counts))} episodes each, the same held-out seeds, 95 % intervals"
    return make_rows(("", *outcomes, "return", "length"), rows, caption)


def _make_phases(name: str, rows: Sequence[Row]) -> str:
    """The phases of each role, what bounds the run, and its timeline."""
    document = {"run": name} | sum_up(rows)
    table = list_phases(document)
    words = [*list_machine(document["machine"]), *list_verdict(document["verdict"])]
    data = base64.b64encode(make_png(document)).decode()
    picture = f'<figure><img alt="timeline" src="data:image/png;base64,{data}"></figure>'
    return make_rows(("role", "phase", "time", "share", ""), table) + make_rows((), words) + picture


def make_rows(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table of text."""
    top = f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>" if head else ""
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    below = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{below}{top}{lines}</table>"


def _embed(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode()
    kind = _KINDS[picture.path.suffix]
    return f'<figure><img alt="{escape(picture.caption)}" src="data:{kind};base64,{data}"></figure>'
