"""Charts as SVG text: curves with bands, marks with intervals and dashed levels; points over a field; bars.

Colours are classes of the page (`c0` to `c7`), so that light and dark pages have their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

Points = Sequence[tuple[float, float]]
Band = Sequence[tuple[float, float, float]]  # x, lower and upper bound
Marks = Sequence[tuple[float, float, float, float]]  # x, y, lower and upper bound of y
NUM_COLORS = 8
# The colours of outcomes: green for the main one, then warm ones; as in dashboard/static/chart.js.
_OUTCOME_COLORS = (2, 1, 4, 5, 3, 7, 6, 0)
_WIDTH, _HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 22, 14, 34
_LINE = 13  # height of a line of text
_LETTER = 6.6  # width of a letter
_BAR = 26  # height of a bar with its name
_BAR_NAMES = 150  # width of the names of bars


def draw_curves(
    title: str,
    series: Mapping[str, Points],
    *,
    unit: str = "",
    span: tuple[float, float] | None = None,
    bands: Mapping[str, Band] | None = None,
    marks: Mapping[str, Marks] | None = None,
    levels: Mapping[str, float] | None = None,
    beginnings: Sequence[tuple[float, str]] = (),
    names: Sequence[str] = (),
    colors: Mapping[str, int] | None = None,
) -> Markup:
    """A chart over steps; empty without data.

    span: the least range of the y axis, such as 0 to 100 for percent. bands: bounds of a series. marks:
    series of points with intervals. levels: dashed lines by name. beginnings: vertical lines with a label
    each. names: of the x values 0, 1, ..., in place of steps. colors: by name, in place of their order.
    """
    series, marks = _drop_empty(series), _drop_empty(marks or {})
    if not series and not marks:
        return Markup("")
    bands = {name: band for name, band in (bands or {}).items() if name in series}
    levels = {name: value for name, value in (levels or {}).items() if math.isfinite(value)}
    rows = [row for rows in (*series.values(), *marks.values(), *bands.values()) for row in rows]
    xs = (-0.5, len(names) - 0.5) if names else (0.0, max(row[0] for row in rows) or 1.0)
    plot = _Plot(xs, [
        *(y for row in rows for y in row[1:]), *levels.values(), *(span or ()),
    ])  # fmt: skip
    ticks: list[tuple[float, str]] = [*enumerate(names)] or [
        (tick, show_tick(tick)) for tick in find_ticks(0.0, plot.x_high)
    ]
    plot.draw_axes(ticks, unit)
    plot.draw_levels(levels)
    plot.draw_beginnings(beginnings)
    numbers = dict(enumerate([*series, *marks]))
    shades = [f"c{(colors or {}).get(name, number) % NUM_COLORS}" for number, name in numbers.items()]
    for shade, (name, points) in zip(shades, series.items(), strict=False):
        plot.draw_line(shade, points, bands.get(name, ()))
    for shade, each in zip(shades[len(series) :], marks.values(), strict=True):
        plot.draw_marks(shade, each)
    return _make_figure(title, plot.parts, names=list(numbers.values()), shades=shades)


def color_outcomes(names: Sequence[str], main: str | None) -> dict[str, int]:
    """The colour of each outcome, in the order of a legend: the main one first."""
    ordered = [name for name in names if name == main] + [name for name in names if name != main]
    first = 0 if main in names else 1
    return {name: _OUTCOME_COLORS[(place + first) % NUM_COLORS] for place, name in enumerate(ordered)}


def draw_points(title: str, points: Points, *, is_log: bool, names: Sequence[str] = ()) -> Markup:
    """A chart of points; empty with fewer than two. names: of the x values 0, 1, ... of a choice."""
    if len(points) < 2:
        return Markup("")
    placed = [(math.log10(x) if is_log else x, y) for x, y in points]
    low, high = min(x for x, _ in placed), max(x for x, _ in placed)
    pad = 0.04 * (high - low) or 0.5
    plot = _Plot((low - pad, high + pad), [y for _, y in placed])
    plot.draw_axes(list(enumerate(names)) or _list_ticks(low - pad, high + pad, is_log))
    plot.draw_marks("c0", [(x, y, y, y) for x, y in placed])
    return _make_figure(title, plot.parts)


def draw_bars(title: str, shares: Mapping[str, float]) -> Markup:
    """A bar for each share of 1; empty without any."""
    parts = []
    for number, (name, share) in enumerate(shares.items()):
        y, width = _TOP + number * _BAR, share * (_WIDTH - _BAR_NAMES - _LEFT)
        parts.append(_draw_text(_BAR_NAMES - 7, y + 12, name, "end"))
        parts.append(
            f'<rect class="portion c0" x="{_BAR_NAMES}" y="{y}" width="{width:.1f}" height="{_BAR - 10}"/>'
        )
        parts.append(_draw_text(round(_BAR_NAMES + width + 6, 1), y + 12, f"{100 * share:.0f} %"))
    return _make_figure(title, parts, height=_TOP + len(shares) * _BAR) if parts else Markup("")


class _Plot:
    """Maps values to the image, and collects SVG elements."""

    def __init__(self, xs: tuple[float, float], ys: Iterable[float]) -> None:
        self.x_low, self.x_high = xs
        ys = list(ys)
        self._y_ticks = find_ticks(min(ys), max(ys))
        self.parts: list[str] = []

    def place(self, x: float, y: float) -> tuple[float, float]:
        low, high = self._y_ticks[0], self._y_ticks[-1]
        across = (x - self.x_low) / (self.x_high - self.x_low) * (_WIDTH - _LEFT - _RIGHT)
        up = (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)
        return round(_LEFT + across, 1), round(_HEIGHT - _BOTTOM - up, 1)

    def draw_axes(self, x_ticks: Sequence[tuple[float, str]], unit: str = "") -> None:
        for tick in self._y_ticks:
            _, y = self.place(self.x_low, tick)
            self.parts.append(_draw_line("grid", _LEFT, y, _WIDTH - _RIGHT, y))
            self.parts.append(_draw_text(_LEFT - 7, y + 4, f"{show_tick(tick)}{unit}", "end"))
        for tick, text in x_ticks:
            if self.x_low <= tick <= self.x_high:
                x, _ = self.place(tick, self._y_ticks[0])
                self.parts.append(_draw_text(x, _HEIGHT - 12, text, "middle"))

    def draw_levels(self, levels: Mapping[str, float]) -> None:
        """Dashed lines with their names above them, or below the names of higher lines."""
        free_y = _TOP + 14.0  # where the next name has room
        for name, value in sorted(levels.items(), key=lambda level: -level[1]):
            _, y = self.place(self.x_low, value)
            self.parts.append(_draw_line("level", _LEFT, y, _WIDTH - _RIGHT, y))
            at = max(y - 5, free_y)
            free_y = at + _LINE
            if at < _HEIGHT - _BOTTOM:
                self.parts.append(_draw_text(_WIDTH - _RIGHT - 4, round(at, 1), name, "end", "tick rim"))

    def draw_beginnings(self, beginnings: Sequence[tuple[float, str]]) -> None:
        free_x = 0.0  # where a label has room
        for at, label in beginnings:
            x, _ = self.place(min(at, self.x_high), self._y_ticks[0])
            self.parts.append(_draw_line("beginning", x, _TOP, x, _HEIGHT - _BOTTOM))
            if x >= free_x and x + _LETTER * len(label) < _WIDTH:
                self.parts.append(_draw_text(round(x + 4, 1), _TOP + 11, label))
                free_x = x + 8 + _LETTER * len(label)

    def draw_line(self, color: str, points: Points, band: Band) -> None:
        if band:
            low = [self.place(x, y) for x, y, _ in band]
            high = [self.place(x, y) for x, _, y in reversed(band)]
            around = " ".join("{},{}".format(*each) for each in (*low, *high))
            self.parts.append(f'<polygon class="band {color}" points="{around}"/>')
        path = " ".join("{},{}".format(*self.place(x, y)) for x, y in points)
        self.parts.append(f'<polyline class="line {color}" points="{path}"/>')
        if len(points) == 1:
            x, y = self.place(*points[0])
            self.parts.append(f'<circle class="dot {color}" cx="{x}" cy="{y}" r="3"/>')

    def draw_marks(self, color: str, marks: Marks) -> None:
        for across, middle, low, high in marks:
            x, y = self.place(across, middle)
            if low < high:
                (_, bottom), (_, top) = self.place(across, low), self.place(across, high)
                self.parts.append(_draw_line(f"interval {color}", x, bottom, x, top))
            self.parts.append(f'<circle class="mark {color}" cx="{x}" cy="{y}" r="3.2"/>')


def _draw_line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _draw_text(x: float, y: float, text: str, anchor: str = "start", kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _make_figure(
    title: str,
    parts: Sequence[str],
    *,
    names: Sequence[str] = (),
    shades: Sequence[str] = (),
    height: int = _HEIGHT,
) -> Markup:
    """A titled figure with a legend, if there are several names. shades: the classes of their colours."""
    entries = (
        f'<li><i class="dot {shade}"></i>{escape(name)}</li>'
        for name, shade in zip(names, shades, strict=True)
    )
    legend = f'<ul class="legend">{"".join(entries)}</ul>' if len(names) > 1 else ""
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    body = "\n".join(parts)
    return Markup(f'<figure class="curves"><h3>{escape(title)}</h3>{legend}{head}\n{body}\n</svg></figure>')


def _drop_empty(series: Mapping[str, Sequence[tuple[float, ...]]]) -> dict[str, Any]:
    """The series with their finite points, without series that have none."""
    finite = {
        name: [point for point in points if all(map(math.isfinite, point))] for name, points in series.items()
    }
    return {name: points for name, points in finite.items() if points}


def find_ticks(low: float, high: float) -> list[float]:
    """About five round numbers that span the values."""
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, 1e-300):  # equal up to rounding
        pad = max(0.5, 1e-3 * size)
        low, high = low - pad, low + pad
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _list_ticks(low: float, high: float, is_log: bool) -> list[tuple[float, str]]:
    """The ticks of an x axis and their texts; log: low and high are powers of ten."""
    if not is_log:
        return [(tick, show_tick(tick)) for tick in find_ticks(low, high)]
    factors = (1,) if high - low > 1.5 else (1, 2, 5)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return [(math.log10(tick), f"{tick:g}") for tick in ticks]


def show_tick(value: float) -> str:
    """A tick as 0.5, 40, 20k or 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"
