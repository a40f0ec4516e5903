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
from mission_gym.report.formats import show_count, show_duration, show_number, show_rate
from mission_gym.report.tables import list_verdict, show_interval, show_outcome
from mission_gym.report.timeline import make_png
from mission_gym.report.timing import MEANINGS, list_machine, sum_up
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog

Row = Mapping[str, Any]
_KINDS = {".gif": "image/gif", ".png": "image/png"}
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --quiet: #5b6878; --paper: #ffffff; --line: #dde3ea;
  --c0: #0f7ac6; --c1: #c2502e; --c2: #23875a; --c3: #8a55c4; --c4: #a4780c; --c5: #5b6878; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4eaf2; --quiet: #93a1b5; --paper: #10151e;
  --line: #2a3444; --c0: #56b2ff; --c1: #ff8a70; --c2: #68d381; --c3: #c39bff; --c4: #ffbe54;
  --c5: #93a1b5; } }
body { margin: 0 auto; padding: 28px 20px 60px; max-width: 1180px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 17px; margin: 34px 0 10px; }
.quiet, caption, td.why { color: var(--quiet); } .verdict { font-size: 18px; margin: 6px 0 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); gap: 18px; }
svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 8px; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg .tick { fill: var(--quiet); font-size: 12px; }
svg .title { font-weight: 600; } .grid { stroke: var(--line); } .line { fill: none; stroke-width: 2; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { text-align: left; padding: 5px 18px 5px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; } caption { caption-side: bottom; text-align: left; padding-top: 6px; }
img { max-width: 100%; border-radius: 8px; } figure { margin: 0; } code { font-size: 13px; }
""" + "\n".join(f".line.c{n} {{ stroke: var(--c{n}); }} .dot.c{n} {{ fill: var(--c{n}); }}" for n in range(6))


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
        f"<h2>Plan</h2>{_make_table((), [(f['name'], f['value'], f['reason']) for f in plan['facts']])}",
        "".join(f"<p class='quiet'>{escape(note)}</p>" for note in plan["notes"]),
        f"<h2>Where the time went</h2>{_make_phases(run.name, rows)}",
    ]
    body = "\n".join(section for section in sections if section)
    title = escape(run.name)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _draw_charts(rows: Sequence[Row]) -> list[str]:
    progress = [row for row in rows if row["event"] == "progress"]
    evals = [row for row in rows if row["event"] == "eval"]
    returns = {
        "training": _pick(progress, "rollout/ep_rew_mean"),
        "evaluation": _pick(evals, "return_mean"),
    }
    names = dict.fromkeys(key for row in progress for key in row if key.startswith("outcome/"))
    outcomes = {key.removeprefix("outcome/"): _scale(_pick(progress, key)) for key in names}
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


def _pick(rows: Sequence[Row], key: str) -> Points:
    return [(row["step"], row[key]) for row in rows if row.get(key) is not None]


def _scale(points: Points) -> Points:
    return [(x, 100.0 * y) for x, y in points]


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
    return _make_table(("", *outcomes, "return", "length"), rows, caption)


def _make_phases(name: str, rows: Sequence[Row]) -> str:
    """The phases of each role, what bounds the run, and its timeline."""
    document = {"run": name} | sum_up(rows)
    wall_s = document["wall_s"]
    table = [
        (role, phase, show_duration(spent), show_rate(spent / wall_s if wall_s else None), MEANINGS[phase])
        for role, phases in document["roles"].items()
        for phase, spent in phases.items()
    ]
    words = [*list_machine(document["machine"]), *list_verdict(document["verdict"])]
    data = base64.b64encode(make_png(document)).decode()
    picture = f'<figure><img alt="timeline" src="data:image/png;base64,{data}"></figure>'
    return _make_table(("role", "phase", "time", "share", ""), table) + _make_table((), words) + picture


def _make_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    top = f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>" if head else ""
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    below = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{below}{top}{lines}</table>"


def _embed(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode()
    kind = _KINDS[picture.path.suffix]
    return f'<figure><img alt="{escape(picture.caption)}" src="data:{kind};base64,{data}"></figure>'
