"""The panel beside the arena: time, capture, outcome, the state of every unit, and the reward by term."""

from __future__ import annotations

import pygame

from mission_gym.missions.capture.simulator import Simulator

PANEL_PX = 300
MARGIN = 20

PAPER, LINE, TEXT, QUIET = (16, 21, 30), (42, 52, 68), (228, 234, 242), (134, 148, 168)
GOOD, WARN, BAD = (104, 211, 129), (255, 190, 84), (255, 92, 92)
_FONTS: dict[int, pygame.font.Font] = {}

Color = tuple[int, int, int]


def draw_panel(
    surface: pygame.Surface,
    simulator: Simulator,
    terms: dict[str, float],
    smooth: int,
    attacker: Color,
    defender: Color,
) -> None:
    """Draw the panel onto its part of the canvas; smooth: how much larger than shown everything is."""
    pen = _Pen(surface, smooth)
    surface.fill(PAPER)
    game, rules = simulator.state.games[0], simulator.world.rules[0]
    outcome = simulator.read_outcomes()[0]
    pen.text("CAPTURE", 24, TEXT)
    pen.text(simulator.scenario.name, 18, QUIET, right=True)
    pen.down(34)
    pen.text(f"{game['tick'] / rules['hz']:.1f} s", 20, TEXT)
    pen.text(f"of {rules['limit_ticks'] / rules['hz']:.0f} s", 16, QUIET, right=True)
    pen.down(26)
    colors = {None: QUIET, "captured": GOOD}
    pen.badge("in progress" if outcome is None else outcome.replace("_", " "), colors.get(outcome, BAD))
    pen.down(40)
    share = min(game["capture"] / rules["capture_ticks"], 1.0)
    held = f"{game['capture'] / rules['hz']:.1f} / {rules['capture_ticks'] / rules['hz']:g} s"
    pen.bar("capture" if not game["contested"] else "capture (contested)", share, held, GOOD)
    left_s = (rules["stall_ticks"] - game["stall"]) / rules["hz"]
    pen.bar("stall clock", game["stall"] / rules["stall_ticks"], f"{left_s:.0f} s left", WARN)
    pen.rule()
    names = [*simulator.scenario.level.attackers.units, *simulator.scenario.level.defenders.units]
    for u, name in enumerate(names):
        part = simulator.state.units["integrity"][0, u] / simulator.world.kinds["integrity"][u]
        pen.row(name, max(part, 0.0), attacker if u < simulator.num_attackers else defender)
    pen.rule()
    pen.text("reward", 16, QUIET)
    pen.text(f"{sum(terms.values()):+.2f}", 20, TEXT, right=True)
    pen.down(26)
    largest = max((abs(value) for value in terms.values()), default=0.0) or 1.0
    for name, value in terms.items():
        pen.term(name.replace("_", " "), value, largest)


class _Pen:
    """Writes down the panel, line by line."""

    def __init__(self, surface: pygame.Surface, smooth: int) -> None:
        self._surface = surface
        self._smooth = smooth
        self._y = MARGIN

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
    if size not in _FONTS:
        _FONTS[size] = pygame.font.Font(None, size)
    return _FONTS[size]
