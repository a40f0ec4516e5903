"""The canvas that missions draw on: a map, and a panel of text and bars at its right.

Everything is drawn at SMOOTH times its size and scaled down, which smooths the edges. No display is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pygame

from mission_gym.data import Array

MAP_PX, PANEL_PX = 720, 300
SIZE_PX = (MAP_PX + PANEL_PX, MAP_PX)
SMOOTH = 2
MARGIN = 20

PAPER, LINE, TEXT, QUIET = (16, 21, 30), (42, 52, 68), (228, 234, 242), (134, 148, 168)
GOOD, WARN, BAD = (104, 211, 129), (255, 190, 84), (255, 92, 92)
_FONTS: dict[int, pygame.font.Font] = {}

Color = tuple[int, int, int]
Point = tuple[float, float]


def make_canvas() -> tuple[pygame.Surface, pygame.Surface]:
    """Return the canvas, and its part for the map."""
    pygame.font.init()
    canvas = pygame.Surface((SIZE_PX[0] * SMOOTH, SIZE_PX[1] * SMOOTH))
    return canvas, canvas.subsurface((0, 0, MAP_PX * SMOOTH, MAP_PX * SMOOTH))


def to_array(canvas: pygame.Surface) -> Array:
    """Scale the canvas down: uint8 [H, W, 3]."""
    small = pygame.transform.smoothscale(canvas, SIZE_PX)
    pixels = np.frombuffer(pygame.image.tobytes(small, "RGB"), np.uint8)
    return pixels.reshape(SIZE_PX[1], SIZE_PX[0], 3).copy()


def shade(share: float) -> Color:
    """Return the colour of a unit by the share of integrity it has left."""
    return GOOD if share > 0.5 else WARN if share > 0.3 else BAD


class Panel:
    """Writes the panel of a canvas from top to bottom. Positions are pixels of the scaled image."""

    def __init__(self, canvas: pygame.Surface) -> None:
        self._surface = canvas.subsurface((MAP_PX * SMOOTH, 0, PANEL_PX * SMOOTH, MAP_PX * SMOOTH))
        self._surface.fill(PAPER)
        self._y = MARGIN

    def down(self, pixels: int) -> None:
        self._y += pixels

    def text(self, text: str, size: int, color: Color, right: bool = False) -> None:
        drawn = _font(size * SMOOTH).render(text, True, color)
        x = (PANEL_PX - MARGIN) * SMOOTH - drawn.get_width() if right else MARGIN * SMOOTH
        self._surface.blit(drawn, (x, self._y * SMOOTH))

    def title(self, name: str, detail: str) -> None:
        """The mission's name, and a detail at the right."""
        self.text(name, 24, TEXT)
        self.text(detail, 18, QUIET, right=True)
        self.down(34)

    def progress(self, text: str, detail: str) -> None:
        """How far the episode is."""
        self.text(text, 20, TEXT)
        self.text(detail, 16, QUIET, right=True)
        self.down(26)

    def outcome(self, outcome: str | None, colors: Mapping[str, Color]) -> None:
        """A badge with the outcome; outcomes without a colour are bad ones."""
        text = "in progress" if outcome is None else outcome
        color = QUIET if outcome is None else colors.get(outcome, BAD)
        drawn = _font(17 * SMOOTH).render(text, True, color)
        width = drawn.get_width() / SMOOTH + 20
        self._rect(MARGIN, self._y, width, 26, tuple(part // 5 + 12 for part in color), 13)
        self._surface.blit(drawn, ((MARGIN + 10) * SMOOTH, (self._y + 7) * SMOOTH))
        self.down(40)

    def bar(self, label: str, share: float, value: str, color: Color) -> None:
        self.text(label, 16, QUIET)
        self.text(value, 16, TEXT, right=True)
        self._meter(MARGIN, self._y + 16, PANEL_PX - 2 * MARGIN, 7, share, color)
        self.down(36)

    def unit(self, name: str, share: float, color: Color) -> None:
        """One unit: its name in the colour of its side, and the share of integrity it has left."""
        self.text(name, 16, color if share > 0 else QUIET)
        if share > 0:
            self._meter(MARGIN + 90, self._y + 3, PANEL_PX - 2 * MARGIN - 90, 6, share, shade(share))
        else:
            self.text("disabled", 16, QUIET, right=True)
        self.down(21)

    def reward(self, terms: Mapping[str, float]) -> None:
        """The reward so far, with a bar per term: to the right if positive, to the left if negative."""
        self.text("reward", 16, QUIET)
        self.text(f"{sum(terms.values()):+.2f}", 20, TEXT, right=True)
        self.down(26)
        largest = max((abs(value) for value in terms.values()), default=0.0) or 1.0
        middle, reach = MARGIN + 160, 38
        for name, value in terms.items():
            self.text(name, 15, QUIET if value == 0 else TEXT)
            self.text(f"{value:+.2f}", 15, QUIET if value == 0 else TEXT, right=True)
            length = reach * abs(value) / largest
            self._rect(middle, self._y, 1, 12, LINE, 0)
            if length >= 1:
                left = middle if value > 0 else middle - length
                self._rect(left, self._y + 2, length, 8, GOOD if value > 0 else BAD, 2)
            self.down(18)

    def rule(self) -> None:
        self.down(6)
        self._rect(MARGIN, self._y, PANEL_PX - 2 * MARGIN, 1, LINE, 0)
        self.down(13)

    def _meter(self, x: float, y: float, width: float, height: float, share: float, color: Color) -> None:
        self._rect(x, y, width, height, LINE, height / 2)
        if share > 0:
            self._rect(x, y, max(width * min(share, 1.0), height), height, color, height / 2)

    def _rect(
        self, x: float, y: float, width: float, height: float, color: tuple[int, ...], radius: float
    ) -> None:
        box = [round(value * SMOOTH) for value in (x, y, width, height)]
        pygame.draw.rect(self._surface, color, pygame.Rect(box), border_radius=round(radius * SMOOTH))


def _font(size: int) -> pygame.font.Font:
    """Return the font that ships with pygame, so that images are the same on every machine."""
    try:
        _FONTS[size].get_height()
    except (KeyError, pygame.error):  # not loaded yet, or a window that was closed has quit pygame
        pygame.font.init()
        _FONTS[size] = pygame.font.Font(None, size)
    return _FONTS[size]
