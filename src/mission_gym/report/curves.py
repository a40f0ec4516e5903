"""Curves as SVG text, drawn by hand: a title, axes with round numbers, a line and a legend entry per series.

Colours are classes of the page (`c0` to `c7`), so that light and dark pages each have their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

Points = Sequence[tuple[float, float]]
NUM_COLORS = 8
_WIDTH, _HEIGHT = 560, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 22, 54, 34


def draw_curves(
    title: str,
    series: Mapping[str, Points],
    *,
    unit: str = "",
    span: tuple[float, float] | None = None,
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """A chart over steps; `span` is what the upright axis shows at least, as 0 to 100 of per cent. bands: for
    a series its lower and its upper bound at each x. marks: upright lines at these x, with what begins."""
    series = {name: _finite(points) for name, points in series.items()}
    series = {name: points for name, points in series.items() if points}
    if not series:
        return Markup(f'<p class="quiet">{escape(title)}: n/a</p>')
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    ys += span or ()
    bands = {name: points for name, points in (bands or {}).items() if name in series}
    ys += [y for points in bands.values() for _, *pair in points for y in pair]
    x_high = max(xs) or 1.0
    x_ticks = [tick for tick in find_ticks(0.0, x_high) if tick <= x_high]
    y_ticks = find_ticks(min(ys), max(ys))
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x / x_high) * (_WIDTH - _LEFT - _RIGHT)
        up = (y - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)
        return round(_LEFT + across, 1), round(_HEIGHT - _BOTTOM - up, 1)

    parts = [f'<text class="title" x="8" y="20">{escape(title)}</text>']
    for tick in y_ticks:
        _, y = place(0.0, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 7}" y="{y + 4}" text-anchor="end">{_short(tick)}{unit}</text>'
        )
    for tick in x_ticks:
        x, _ = place(tick, y_low)
        parts.append(
            f'<text class="tick" x="{x}" y="{_HEIGHT - 12}" text-anchor="middle">{_short(tick)}</text>'
        )
    free_x = 0.0  # where the label of a mark has room
    for at, label in marks:
        x, _ = place(min(at, x_high), y_low)
        parts.append(f'<line class="mark" x1="{x}" y1="{_TOP}" x2="{x}" y2="{_HEIGHT - _BOTTOM}"/>')
        if x >= free_x and x + 6.6 * len(label) < _WIDTH:
            parts.append(f'<text class="tick" x="{x + 4:.1f}" y="{_TOP + 11}">{escape(label)}</text>')
            free_x = x + 8 + 6.6 * len(label)
    legend_x = 8.0
    for number, (name, points) in enumerate(series.items()):
        color = f"c{number % NUM_COLORS}"
        if name in bands:
            low = [place(x, y) for x, y, _ in bands[name]]
            high = [place(x, y) for x, _, y in reversed(bands[name])]
            around = " ".join("{},{}".format(*each) for each in (*low, *high))
            parts.append(f'<polygon class="band {color}" points="{around}"/>')
        path = " ".join("{},{}".format(*place(x, y)) for x, y in points)
        parts.append(f'<polyline class="line {color}" points="{path}"/>')
        if len(points) == 1:
            x, y = place(*points[0])
            parts.append(f'<circle class="dot {color}" cx="{x}" cy="{y}" r="3"/>')
        if len(series) > 1:
            parts.append(f'<rect class="dot {color}" x="{legend_x:.0f}" y="32" width="10" height="10"/>')
            parts.append(f'<text class="tick" x="{legend_x + 14:.0f}" y="41">{escape(name)}</text>')
            legend_x += 30 + 6.6 * len(name)
    body = "\n".join(parts)
    head = f'<svg class="curves" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
    return Markup(f"{head}\n{body}\n</svg>")


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def find_ticks(low: float, high: float) -> list[float]:
    """About five round numbers that span the values."""
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, 1e-300):  # equal up to the noise of floats
        pad = max(0.5, 1e-3 * size)
        low, high = low - pad, low + pad
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _short(value: float) -> str:
    """A tick as 0.5, 40, 20k or 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"
