"""The timeline of a run as a picture: what each role did in the last updates, and its phases in all."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from mission_gym.clock import ROLES
from mission_gym.report.curves import find_ticks
from mission_gym.report.formats import show_rate

_COLORS = {
    "collect": "#2f7fc1", "env": "#2f7fc1", "act": "#7db7e3", "wait": "#d9b23c", "copy": "#4aa89c",
    "update": "#d9693a", "values": "#efa77f", "record": "#9aa5b1", "evaluate": "#4f9a4a", "save": "#8a62b8",
    "idle": "#eceff3",
}  # fmt: skip
_INK, _QUIET, _LINE, _PAPER = "#1c2430", "#5b6878", "#dde3ea", "#ffffff"
_DARK_INK_ON = ("idle", "act", "wait", "values")
_WIDTH, _LEFT, _RIGHT = 1600, 130, 40
_LANE, _GAP = 46, 12
_TITLE, _BODY, _SMALL = 26, 19, 16


class _Pen(NamedTuple):
    draw: ImageDraw.ImageDraw

    def text(self, x: float, y: float, text: str, size: int, ink: str = _INK, anchor: str = "la") -> None:
        self.draw.text((x, y), text, ink, ImageFont.load_default(size), anchor)

    def width(self, text: str, size: int) -> float:
        return self.draw.textlength(text, ImageFont.load_default(size))

    def bar(self, start: float, end: float, y: float, phase: str) -> None:
        """At least a pixel wide: a short phase is there too."""
        self.draw.rectangle((start, y, max(end - 1, start), y + _LANE), fill=_COLORS.get(phase, _QUIET))


def draw_timeline(document: Mapping[str, Any]) -> Image.Image:
    """The picture of a `runs timeline` document."""
    lanes_s = len(ROLES) * (_LANE + _GAP)
    image = Image.new("RGB", (_WIDTH, 2 * lanes_s + 290), _PAPER)
    pen = _Pen(ImageDraw.Draw(image))
    pen.text(24, 20, document["run"], _TITLE)
    y = _draw_spans(pen, document, 66)
    y = _draw_shares(pen, document, y + 30)
    verdict = document["verdict"]
    if verdict:
        pen.text(24, y + 16, _fit(pen, f"bound by {verdict['bound']}: {verdict['evidence']}"), _BODY)
    return image


def make_png(document: Mapping[str, Any]) -> bytes:
    """The same as the bytes of a PNG."""
    stream = BytesIO()
    draw_timeline(document).save(stream, "PNG")
    return stream.getvalue()


def _draw_spans(pen: _Pen, document: Mapping[str, Any], y: float) -> float:
    """A lane for each role over the seconds of the last updates."""
    updates, spans = document["updates"], document["spans"]
    names = f"updates {updates[0]:,} to {updates[1]:,}" if updates else "no update was made"
    overlap = "" if document["overlap"] is None else f"; overlap {show_rate(document['overlap'])} of the run"
    pen.text(24, y, f"{names}{overlap}", _BODY, _QUIET)
    _draw_legend(pen, ["collect", "update", *ROLES["main"]], y)
    y += 36
    whole_s = max((end for *_, end in spans), default=1.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / whole_s
    bottom = y + len(ROLES) * (_LANE + _GAP)
    unit_s, unit = (1e-3, "ms") if whole_s < 2.0 else (1.0, "s")
    for tick in find_ticks(0.0, whole_s / unit_s):
        x = _LEFT + tick * unit_s * scale
        if x <= _WIDTH - _RIGHT:
            pen.draw.line((x, y - 4, x, bottom), fill=_LINE)
            pen.text(x, bottom + 4, f"{tick:g} {unit}", _SMALL, _QUIET, "ma")
    for number, role in enumerate(ROLES):
        top = y + number * (_LANE + _GAP)
        pen.text(24, top + _LANE / 2, role, _BODY, anchor="lm")
        for owner, phase, start, end in spans:
            if owner == role:
                pen.bar(_LEFT + start * scale, _LEFT + end * scale, top, phase)
    return bottom + 24


def _draw_shares(pen: _Pen, document: Mapping[str, Any], y: float) -> float:
    """A bar for each role: the share of every phase in the whole run."""
    pen.text(24, y, "share of the whole run", _BODY, _QUIET)
    y += 32
    wall_s = document["wall_s"] or 1.0
    room = _WIDTH - _LEFT - _RIGHT
    for role, phases in document["roles"].items():
        pen.text(24, y + _LANE / 2, role, _BODY, anchor="lm")
        x = float(_LEFT)
        for name, seconds in phases.items():
            end = x + room * max(seconds, 0.0) / wall_s
            if end - x < 1:
                continue
            pen.bar(x, end, y, name)
            ink = _INK if name in _DARK_INK_ON else _PAPER
            for text in (f"{name} {show_rate(seconds / wall_s)}", name):
                if pen.width(text, _SMALL) + 10 < end - x:
                    pen.text((x + end) / 2, y + _LANE / 2, text, _SMALL, ink, "mm")
                    break
            x = end
        y += _LANE + _GAP
    return y


def _draw_legend(pen: _Pen, names: list[str], y: float) -> None:
    x = float(_WIDTH - _RIGHT)
    for name in reversed(names):
        x -= pen.width(name, _SMALL)
        pen.text(x, y, name, _SMALL, _QUIET)
        pen.draw.rectangle((x - 22, y + 3, x - 8, y + 17), fill=_COLORS[name])
        x -= 44


def _fit(pen: _Pen, text: str) -> str:
    """The text, cut where the picture ends."""
    while pen.width(text, _BODY) > _WIDTH - 48:
        text = text.rstrip(".").rpartition(" ")[0] + "..."
    return text
