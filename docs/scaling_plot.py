"""Draws docs/images/scaling-ray.svg from docs/scaling.json, the rows of `mission-gym bench ray --json`: the
rate on paper against the number of actors, and what each part would allow alone, on scales of powers of ten.
"""

from __future__ import annotations

import json
from math import log10
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 70, 130, 36, 44
COLOURS = {"actors": "#1668b8", "driver": "#c2571a", "object store": "#7a3fb0", "learner": "#2b8a3e"}


def draw(predictions: list[dict[str, Any]]) -> str:
    """The picture of predictions, in the order of their numbers of actors."""
    rates = [rate for each in predictions for rate in each["limits"].values() if rate < 1e8]
    low, high = int(log10(min(rates))), int(log10(max(rates))) + 1
    most = log10(predictions[-1]["num_actors"])

    def place(actors: float, rate: float) -> str:
        x = LEFT + log10(actors) / most * (WIDTH - LEFT - RIGHT)
        up = (log10(rate) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{HEIGHT - BOTTOM - up:.1f}"

    def text(at: str, words: str, **attributes: str) -> str:
        x, y = at.split(",")
        more = " ".join(f'{name.replace("_", "-")}="{value}"' for name, value in attributes.items())
        return f'<text x="{x}" y="{y}" font-size="12" {more}>{words}</text>'

    parts = [text(f"{LEFT},20", "steps/s against actors, on paper", font_weight="600")]
    for power in range(low, high + 1):
        y = place(1, 10**power).split(",")[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(text(f"{LEFT - 6},{float(y) + 4}", f"{10**power:,}", text_anchor="end"))
    for power in range(int(most) + 1):
        x = place(10**power, 10**low).split(",")[0]
        parts.append(text(f"{x},{HEIGHT - BOTTOM + 18}", f"{10**power:,}", text_anchor="middle"))
    for name, colour in COLOURS.items():
        points = [(each["num_actors"], each["limits"][name]) for each in predictions]
        if points[-1][1] >= 1e8:  # it costs nothing here
            continue
        line = " ".join(place(*point) for point in points)
        dashed = f'fill="none" stroke="{colour}" stroke-dasharray="4 3"'
        parts.append(f'<polyline points="{line}" {dashed}/>')
        x, y = place(*points[-1]).split(",")
        parts.append(text(f"{float(x) + 6},{float(y) + 4}", name, fill=colour))
    line = " ".join(place(each["num_actors"], each["steps_per_s"]) for each in predictions)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1b1f24" stroke-width="2.5"/>')
    body = "\n".join(parts)
    head = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    white = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {head} role="img">\n{white}\n{body}\n</svg>\n'


if __name__ == "__main__":
    rows = json.loads((HERE / "scaling.json").read_text("utf-8"))
    found = next(row["predictions"] for row in rows if "predictions" in row)  # of 20 ms a step
    (HERE / "images" / "scaling-ray.svg").write_text(draw(found), "utf-8")
