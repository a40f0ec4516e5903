"""Points over one field and bars, as SVG text in the style of the curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from mission_gym.report.curves import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, find_ticks, show_tick

_ROW = 26  # height of a bar with its name
_NAMES = 150  # width of the names of bars


def draw_points(
    title: str, points: Sequence[tuple[float, float]], *, is_log: bool, names: Sequence[str] = ()
) -> Markup:
    """A chart of points; names: of the values 0, 1, ... of a choice. Nothing without two points."""
    if len(points) < 2:
        return Markup("")
    xs = [_bend(x, is_log) for x, _ in points]
    y_ticks = find_ticks(min(y for _, y in points), max(y for _, y in points))
    low, high = min(xs), max(xs)
    pad = 0.04 * (high - low) or 0.5
    low, high = low - pad, high + pad

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (HEIGHT - TOP - BOTTOM)
        return round(LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    parts = []
    for tick in y_ticks:
        _, y = place(low, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 7}" y="{y + 4}" text-anchor="end">{show_tick(tick)}</text>'
        )
    for at, text in _list_ticks(low, high, is_log, names):
        x, _ = place(at, y_ticks[0])
        parts.append(
            f'<text class="tick" x="{x}" y="{HEIGHT - 12}" text-anchor="middle">{escape(text)}</text>'
        )
    for at, (_, value) in zip(xs, points, strict=True):
        x, y = place(at, value)
        parts.append(f'<circle class="mark c0" cx="{x}" cy="{y}" r="3.2"/>')
    return _frame(title, HEIGHT, parts)


def draw_bars(title: str, shares: Mapping[str, float]) -> Markup:
    """A bar for each share of 1; nothing without any."""
    if not shares:
        return Markup("")
    parts = []
    for number, (name, share) in enumerate(shares.items()):
        y, width = TOP + number * _ROW, share * (WIDTH - _NAMES - LEFT)
        at = f'x="{_NAMES}" y="{y}" width="{width:.1f}" height="{_ROW - 10}"'
        parts.append(
            f'<text class="tick" x="{_NAMES - 7}" y="{y + 12}" text-anchor="end">{escape(name)}</text>'
        )
        parts.append(f'<rect class="portion c0" {at}/>')
        parts.append(
            f'<text class="tick" x="{_NAMES + width + 6:.1f}" y="{y + 12}">{100 * share:.0f} %</text>'
        )
    return _frame(title, TOP + len(shares) * _ROW, parts)


def _frame(title: str, height: int, parts: Sequence[str]) -> Markup:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    body = "\n".join(parts)
    return Markup(f'<figure class="curves"><h3>{escape(title)}</h3>{head}\n{body}\n</svg></figure>')


def _bend(x: float, is_log: bool) -> float:
    return math.log10(x) if is_log else x


def _list_ticks(low: float, high: float, is_log: bool, names: Sequence[str]) -> list[tuple[float, str]]:
    """Where the level axis has which text."""
    if names:
        return list(enumerate(names))
    if not is_log:
        return [(tick, show_tick(tick)) for tick in find_ticks(low, high) if low <= tick <= high]
    first, last = math.floor(low), math.ceil(high)
    factors = (1,) if high - low > 1.5 else (1, 2, 5)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    return [(math.log10(tick), f"{tick:g}") for tick in ticks if low <= math.log10(tick) <= high]
