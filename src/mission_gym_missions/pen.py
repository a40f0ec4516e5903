"""Writes the panel beside a mission's picture, line by line, with the font that comes with pygame."""

from __future__ import annotations

import pygame

PANEL_PX = 300
MARGIN = 20

PAPER, LINE, TEXT, QUIET = (16, 21, 30), (42, 52, 68), (228, 234, 242), (134, 148, 168)
GOOD, WARN, BAD = (104, 211, 129), (255, 190, 84), (255, 92, 92)
_FONTS: dict[int, pygame.font.Font] = {}

Color = tuple[int, int, int]


class Pen:
    """Writes down a panel; smooth: how much larger than shown everything is drawn."""

    def __init__(self, surface: pygame.Surface, smooth: int) -> None:
        self._surface = surface
        self._smooth = smooth
        self._y = MARGIN

    def fill(self, color: Color) -> None:
        self._surface.fill(color)

    def down(self, pixels: int) -> None:
        self._y += pixels

    def text(self, text: str, size: int, color: Color, right: bool = False, indent: int = 0) -> None:
        drawn = _font(size * self._smooth).render(text, True, color)
        x = (MARGIN + indent) * self._smooth
        if right:
            x = (PANEL_PX - MARGIN) * self._smooth - drawn.get_width()
        self._surface.blit(drawn, (x, self._y * self._smooth))

    def badge(self, text: str, color: Color) -> None:
        drawn = _font(17 * self._smooth).render(text, True, color)
        width = drawn.get_width() / self._smooth + 20
        self._rect(MARGIN, self._y, width, 26, tuple(part // 5 + 12 for part in color), 13)
        self._surface.blit(drawn, ((MARGIN + 10) * self._smooth, (self._y + 7) * self._smooth))

    def bar(self, label: str, share: float, value: str, color: Color) -> None:
        self.text(label, 16, QUIET)
        self.text(value, 16, TEXT, right=True)
        self._meter(MARGIN, self._y + 16, PANEL_PX - 2 * MARGIN, 7, share, color)
        self.down(36)

    def row(self, name: str, share: float, color: Color) -> None:
        """One unit: its name in the colour of its side and how whole it is."""
        self.text(name, 16, color if share > 0 else QUIET)
        if share > 0:
            shade = GOOD if share > 0.5 else WARN if share > 0.3 else BAD
            self._meter(MARGIN + 90, self._y + 3, PANEL_PX - 2 * MARGIN - 90, 6, share, shade)
        else:
            self.text("disabled", 16, QUIET, right=True)
        self.down(21)

    def term(self, name: str, value: float, largest: float) -> None:
        """One term of the reward: its bar goes right from the middle if it paid, left if it cost."""
        self.text(name, 15, QUIET if value == 0 else TEXT)
        self.text(f"{value:+.2f}", 15, QUIET if value == 0 else TEXT, right=True)
        middle, reach = MARGIN + 160, 38
        length = reach * abs(value) / largest
        left = middle if value > 0 else middle - length
        self._rect(middle, self._y, 1, 12, LINE, 0)
        if length >= 1:
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
        box = [round(value * self._smooth) for value in (x, y, width, height)]
        pygame.draw.rect(self._surface, color, pygame.Rect(box), border_radius=round(radius * self._smooth))


def _font(size: int) -> pygame.font.Font:
    """The font that comes with pygame, so that pictures are the same everywhere."""
    try:
        _FONTS[size].get_height()
    except (KeyError, pygame.error):  # none yet, or a window that was closed has quit pygame
        pygame.font.init()
        _FONTS[size] = pygame.font.Font(None, size)
    return _FONTS[size]
