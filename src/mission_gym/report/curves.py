"""Curves as SVG text, drawn by hand: a title, a legend, axes with round numbers, a line for each series,
marks with intervals, dashed levels.

Colours are classes of the page (`c0` to `c7`), so that light and dark pages each have their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

Points = Sequence[tuple[float, float]]
Bounded = Sequence[tuple[float, float, float, float]]  # x, y, and the interval around y
NUM_COLORS = 8
WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 22, 14, 34
_LINE = 13  # between two lines of text


def draw_curves(
    title: str,
    series: Mapping[str, Points],
    *,
    unit: str = "",
    span: tuple[float, float] | None = None,
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
    marks: Mapping[str, Bounded] | None = None,
    levels: Mapping[str, float] | None = None,
    beginnings: Sequence[tuple[float, str]] = (),
) -> Markup:
    """A chart over steps; `span` is what the upright axis shows at least, as 0 to 100 of per cent. bands: for
    a series its lower and its upper bound at each x. marks: series of points with intervals. levels: dashed
    lines by name. beginnings: upright lines at these x, with what begins. Nothing where there is nothing to
    draw."""
    series = {name: _finite(points) for name, points in series.items()}
    series = {name: points for name, points in series.items() if points}
    marks = {name: _finite(points) for name, points in (marks or {}).items()}
    marks = {name: points for name, points in marks.items() if points}
    if not series and not marks:
        return Markup("")
    bands = {name: points for name, points in (bands or {}).items() if name in series}
    levels = {name: value for name, value in (levels or {}).items() if math.isfinite(value)}
    xs = [x for points in (*series.values(), *marks.values()) for x, *_ in points]
    ys = [
        y
        for points in (*series.values(), *marks.values(), *bands.values())
        for _, *rest in points
        for y in rest
    ]
    box = _Box(xs, [*ys, *levels.values(), *(span or ())])
    parts = [*box.draw_axes(unit)]
    parts += [*box.draw_levels(levels), *box.draw_beginnings(beginnings)]
    for number, (name, points) in enumerate(series.items()):
        parts += box.draw_line(f"c{number % NUM_COLORS}", points, bands.get(name, ()))
    for number, bounded in enumerate(marks.values(), len(series)):
        parts += box.draw_marks(f"c{number % NUM_COLORS}", bounded)
    names = [*series, *marks]
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    body = "\n".join(parts)
    return Markup(
        f'<figure class="curves"><h3>{escape(title)}</h3>{_draw_legend(names)}{head}\n{body}\n</svg></figure>'
    )


class _Box:
    """Where values lie in the picture."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self._x_high = max(xs) or 1.0
        self._y_ticks = find_ticks(min(ys), max(ys))
        self._y_low, self._y_high = self._y_ticks[0], self._y_ticks[-1]

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x / self._x_high) * (WIDTH - LEFT - RIGHT)
        up = (y - self._y_low) / (self._y_high - self._y_low) * (HEIGHT - TOP - BOTTOM)
        return round(LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    def draw_axes(self, unit: str) -> list[str]:
        parts = []
        for tick in self._y_ticks:
            _, y = self.place(0.0, tick)
            parts.append(f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
            text = f"{show_tick(tick)}{unit}"
            parts.append(f'<text class="tick" x="{LEFT - 7}" y="{y + 4}" text-anchor="end">{text}</text>')
        for tick in find_ticks(0.0, self._x_high):
            if tick <= self._x_high:
                x, _ = self.place(tick, self._y_low)
                where = f'x="{x}" y="{HEIGHT - 12}" text-anchor="middle"'
                parts.append(f'<text class="tick" {where}>{show_tick(tick)}</text>')
        return parts

    def draw_levels(self, levels: Mapping[str, float]) -> list[str]:
        """Dashed lines; their names are above them, or as far below that as those of higher lines need."""
        parts = []
        free_y = TOP + 14.0  # where the next name has room
        for name, value in sorted(levels.items(), key=lambda level: -level[1]):
            _, y = self.place(0.0, value)
            parts.append(f'<line class="level" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
            at = max(y - 5, free_y)
            free_y = at + _LINE
            if at < HEIGHT - BOTTOM:
                place = f'x="{WIDTH - RIGHT - 4}" y="{at:.1f}" text-anchor="end"'
                parts.append(f'<text class="tick rim" {place}>{escape(name)}</text>')
        return parts

    def draw_beginnings(self, beginnings: Sequence[tuple[float, str]]) -> list[str]:
        parts = []
        free_x = 0.0  # where a label has room
        for at, label in beginnings:
            x, _ = self.place(min(at, self._x_high), self._y_low)
            ends = f'x1="{x}" y1="{TOP}" x2="{x}" y2="{HEIGHT - BOTTOM}"'
            parts.append(f'<line class="beginning" {ends}/>')
            if x >= free_x and x + 6.6 * len(label) < WIDTH:
                parts.append(f'<text class="tick" x="{x + 4:.1f}" y="{TOP + 11}">{escape(label)}</text>')
                free_x = x + 8 + 6.6 * len(label)
        return parts

    def draw_line(self, color: str, points: Points, band: Sequence[tuple[float, float, float]]) -> list[str]:
        parts = []
        if band:
            low = [self.place(x, y) for x, y, _ in band]
            high = [self.place(x, y) for x, _, y in reversed(band)]
            around = " ".join("{},{}".format(*each) for each in (*low, *high))
            parts.append(f'<polygon class="band {color}" points="{around}"/>')
        path = " ".join("{},{}".format(*self.place(x, y)) for x, y in points)
        parts.append(f'<polyline class="line {color}" points="{path}"/>')
        if len(points) == 1:
            x, y = self.place(*points[0])
            parts.append(f'<circle class="dot {color}" cx="{x}" cy="{y}" r="3"/>')
        return parts

    def draw_marks(self, color: str, points: Bounded) -> list[str]:
        parts = []
        for across, middle, low, high in points:
            x, y = self.place(across, middle)
            (_, bottom), (_, top) = self.place(across, low), self.place(across, high)
            parts.append(f'<line class="interval {color}" x1="{x}" y1="{bottom}" x2="{x}" y2="{top}"/>')
            parts.append(f'<circle class="mark {color}" cx="{x}" cy="{y}" r="3.2"/>')
        return parts


def _draw_legend(names: Sequence[str]) -> str:
    """A chip for each name, which wrap; none for one line alone."""
    chips = (
        f'<li><i class="dot c{number % NUM_COLORS}"></i>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(chips)}</ul>' if len(names) > 1 else ""


def _finite(points: Sequence[tuple[float, ...]]) -> list[Any]:
    return [point for point in points if all(map(math.isfinite, point))]


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


def show_tick(value: float) -> str:
    """A tick as 0.5, 40, 20k or 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"
