"""The panel beside the arena: time, capture, outcome, the state of every unit, and the reward by term."""

from __future__ import annotations

import pygame

from mission_gym_missions.capture.simulator import Simulator
from mission_gym_missions.pen import BAD, GOOD, PAPER, QUIET, TEXT, WARN, Color, Pen


def draw_panel(
    surface: pygame.Surface,
    simulator: Simulator,
    terms: dict[str, float],
    smooth: int,
    attacker: Color,
    defender: Color,
) -> None:
    """Draw the panel onto its part of the canvas; smooth: how much larger than shown everything is."""
    pen = Pen(surface, smooth)
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
