"""Draws a capture mission from above: arena, zone, units, sensors and trails, with a panel.

Only the window needs a display.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from typing import Any

import numpy as np
import pygame

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym_missions.capture.scenario import Scenario
from mission_gym_missions.capture.simulator import CaptureSimulator
from mission_gym_missions.panel import (
    GOOD,
    MAP_PX,
    SIZE_PX,
    SMOOTH,
    WARN,
    Color,
    Panel,
    Point,
    make_canvas,
    shade,
    to_array,
)

TRAIL_COMMANDS = 80  # 20 s

GROUND, FLOOR, GRID, EDGE = (12, 16, 23), (21, 27, 37), (30, 38, 50), (70, 84, 104)
STONE, STONE_EDGE = (52, 62, 78), (86, 100, 122)
ATTACKER, DEFENDER, GONE = (86, 178, 255), (255, 112, 96), (92, 100, 112)
ZONE, ZONE_BLOCKED = (64, 214, 164), (255, 190, 84)


class Renderer:
    """Draws one game, as arrays or, with `window_fps`, into a window at that rate at most."""

    def __init__(self, scenario: Scenario, window_fps: int | None) -> None:
        self._scale = MAP_PX * SMOOTH / scenario.level.arena_m
        self._half_m = scenario.level.arena_m / 2
        self._canvas, _ = make_canvas()
        self._floor = self._draw_floor(scenario)
        self._trail: deque[Array] = deque(maxlen=TRAIL_COMMANDS)
        self._fps = window_fps or 0
        self._window = None if window_fps is None else _open_window()
        self._clock = pygame.time.Clock()

    def follow(self, simulator: CaptureSimulator, begins: bool) -> None:
        """Record the positions of the units for their trails; clear them when an episode begins."""
        if begins:
            self._trail.clear()
            return
        units = simulator.state.units[0]
        self._trail.append(np.stack([units["x"], units["y"]], axis=1))

    def draw(self, simulator: CaptureSimulator, terms: dict[str, float]) -> Array | None:
        """Draw the current state. terms: the reward of the episode so far, by term."""
        self._canvas.fill(GROUND)
        self._canvas.blit(self._floor, (0, 0))
        self._draw_sensors(simulator)
        self._draw_trails(simulator.num_attackers)
        self._draw_zone(simulator)
        self._draw_tags(simulator)
        for u in range(len(simulator.state.units[0])):
            self._draw_unit(simulator, u)
        _draw_panel(Panel(self._canvas), simulator, terms)
        if self._window is None:
            return to_array(self._canvas)
        pygame.event.pump()
        self._window.blit(pygame.transform.smoothscale(self._canvas, SIZE_PX), (0, 0))
        pygame.display.flip()
        self._clock.tick(self._fps)
        return None

    def close(self) -> None:
        """Close the window."""
        if self._window is not None:
            pygame.display.quit()
            self._window = None

    def _at(self, x: float, y: float) -> Point:
        return (x + self._half_m) * self._scale, (self._half_m - y) * self._scale

    def _draw_floor(self, scenario: Scenario) -> pygame.Surface:
        """Draw the parts that never change: the ground, its grid and the obstacles."""
        size = MAP_PX * SMOOTH
        floor = pygame.Surface((size, size))
        floor.fill(FLOOR)
        for metres in range(0, int(scenario.level.arena_m), 20):
            line = round(metres * self._scale)
            pygame.draw.line(floor, GRID, (line, 0), (line, size), SMOOTH)
            pygame.draw.line(floor, GRID, (0, line), (size, line), SMOOTH)
        for item in scenario.level.obstacles:
            x, y = item.position_m
            if item.radius_m is not None:
                pygame.draw.circle(floor, STONE, self._at(x, y), item.radius_m * self._scale)
                pygame.draw.circle(floor, STONE_EDGE, self._at(x, y), item.radius_m * self._scale, 2 * SMOOTH)
            else:
                assert item.size_m is not None
                w, h = item.size_m[0] / 2, item.size_m[1] / 2
                corners = _rotate([(-w, -h), (w, -h), (w, h), (-w, h)], math.radians(item.angle_deg))
                points = [self._at(x + dx, y + dy) for dx, dy in corners]
                pygame.draw.polygon(floor, STONE, points)
                pygame.draw.polygon(floor, STONE_EDGE, points, 2 * SMOOTH)
        pygame.draw.rect(floor, EDGE, floor.get_rect(), 2 * SMOOTH)
        return floor

    def _draw_sensors(self, simulator: CaptureSimulator) -> None:
        for u, unit in enumerate(simulator.state.units[0]):
            kind = simulator.world.kinds[u]
            if unit["integrity"] <= 0:
                continue
            reach = kind["sensor_m"] * (0.5 if unit["integrity"] <= 0.3 * kind["integrity"] else 1.0)
            wedge = self._wedge(unit, reach, math.acos(max(kind["sensor_cos"], -1.0)))
            if u < simulator.num_attackers:
                self._blend(wedge, ATTACKER, 7, 50)
            else:
                self._blend(wedge, DEFENDER, 42, 110)

    def _draw_trails(self, num_attackers: int) -> None:
        trail = list(self._trail)
        glow = pygame.Surface(self._floor.get_size(), pygame.SRCALPHA)
        for step in range(1, len(trail)):
            alpha = int(150 * step / len(trail))
            for u in range(len(trail[step])):
                color = ATTACKER if u < num_attackers else DEFENDER
                start, end = self._at(*trail[step - 1][u]), self._at(*trail[step][u])
                pygame.draw.line(glow, (*color, alpha), start, end, 2 * SMOOTH)
        self._canvas.blit(glow, (0, 0))

    def _draw_zone(self, simulator: CaptureSimulator) -> None:
        game, rules = simulator.state.games[0], simulator.world.rules[0]
        color = ZONE_BLOCKED if game["contested"] else ZONE
        centre = self._at(game["objective_x"], game["objective_y"])
        radius = rules["radius"] * self._scale
        self._blend(_arc(centre, radius, np.linspace(0, 2 * math.pi, 120)), color, 34, 200)
        share = min(game["capture"] / rules["capture_ticks"], 1.0)
        if share > 0:
            angles = np.linspace(math.pi / 2, math.pi / 2 - 2 * math.pi * share, max(int(120 * share), 2))
            ring = _arc(centre, radius + 7 * SMOOTH, angles) + _arc(centre, radius + 2 * SMOOTH, angles[::-1])
            pygame.draw.polygon(self._canvas, color, ring)

    def _draw_tags(self, simulator: CaptureSimulator) -> None:
        """Flash the cone of each tag of the last command."""
        rules = simulator.world.rules[0]
        half = math.acos(rules["tag_cos"])
        for u, unit in enumerate(simulator.state.units[0]):
            fresh = simulator.world.kinds["cooldown"][u] - rules["command_ticks"]
            if unit["cooldown"] == 0 or unit["cooldown"] < fresh:
                continue
            color = ATTACKER if u < simulator.num_attackers else DEFENDER
            self._blend(self._wedge(unit, rules["tag_m"], half), color, 90, 160)

    def _draw_unit(self, simulator: CaptureSimulator, u: int) -> None:
        unit, kind = simulator.state.units[0, u], simulator.world.kinds[u]
        x, y = self._at(unit["x"], unit["y"])
        share = unit["integrity"] / kind["integrity"]
        color: Color = ATTACKER if u < simulator.num_attackers else DEFENDER
        if share <= 0:
            color = GONE
        size = max(kind["radius"] * self._scale, 8.5 * SMOOTH)
        heading = math.atan2(unit["sin"], unit["cos"])
        if kind["air"]:
            shape = [(1.25, 0.0), (-0.85, 0.85), (-0.4, 0.0), (-0.85, -0.85)]
        else:
            shape = [(0.95, 0.0), (0.45, 0.7), (-0.85, 0.7), (-0.85, -0.7), (0.45, -0.7)]
        points = [(x + size * dx, y - size * dy) for dx, dy in _rotate(shape, heading)]
        pygame.draw.polygon(self._canvas, color, points)
        pygame.draw.polygon(self._canvas, GROUND, points, SMOOTH)
        if share <= 0:
            for side in (-1, 1):
                arm = size * 0.8
                pygame.draw.line(
                    self._canvas, FLOOR, (x - arm, y - side * arm), (x + arm, y + side * arm), 2 * SMOOTH
                )
            return
        width, height = 26 * SMOOTH, 3 * SMOOTH
        bar = pygame.Rect(int(x - width / 2), int(y - size - 8 * SMOOTH), width, height)
        pygame.draw.rect(self._canvas, GROUND, bar.inflate(2 * SMOOTH, 2 * SMOOTH), border_radius=2 * SMOOTH)
        bar.width = max(int(width * share), SMOOTH)
        pygame.draw.rect(self._canvas, shade(share), bar, border_radius=SMOOTH)

    def _wedge(self, unit: Any, reach_m: float, half: float) -> list[Point]:
        """Return the outline of a cone around the unit's heading, or of a circle."""
        heading = math.atan2(unit["sin"], unit["cos"])
        centre = self._at(unit["x"], unit["y"])
        arc = _arc(centre, reach_m * self._scale, np.linspace(heading - half, heading + half, 48))
        return arc if half >= math.pi else [centre, *arc]

    def _blend(self, points: list[Point], color: Color, fill: int, edge: int) -> None:
        """Draw a translucent shape over the arena; fill and edge are opacities up to 255."""
        arena = self._floor.get_rect()
        xs, ys = [x for x, _ in points], [y for _, y in points]
        box = pygame.Rect(int(min(xs)), int(min(ys)), int(max(xs) - min(xs)) + 2, int(max(ys) - min(ys)) + 2)
        box = box.inflate(2 * SMOOTH, 2 * SMOOTH).clip(arena)
        layer = pygame.Surface(box.size, pygame.SRCALPHA)
        moved = [(x - box.left, y - box.top) for x, y in points]
        pygame.draw.polygon(layer, (*color, fill), moved)
        pygame.draw.lines(layer, (*color, edge), True, moved, SMOOTH)
        self._canvas.blit(layer, box)


def _arc(centre: Point, radius: float, angles: Array) -> list[Point]:
    return [(centre[0] + radius * math.cos(a), centre[1] - radius * math.sin(a)) for a in angles]


def _rotate(points: list[Point], angle: float) -> list[Point]:
    cos, sin = math.cos(angle), math.sin(angle)
    return [(x * cos - y * sin, x * sin + y * cos) for x, y in points]


def _draw_panel(panel: Panel, simulator: CaptureSimulator, terms: dict[str, float]) -> None:
    """Write time, outcome, clocks, the integrity of every unit, and the reward by term."""
    game, rules = simulator.state.games[0], simulator.world.rules[0]
    outcome = simulator.read_outcomes()[0]
    hz = rules["hz"]
    panel.title("CAPTURE", simulator.scenario.name)
    panel.progress(f"{game['tick'] / hz:.1f} s", f"of {rules['limit_ticks'] / hz:.0f} s")
    panel.outcome(outcome and outcome.replace("_", " "), {"captured": GOOD})
    share = min(game["capture"] / rules["capture_ticks"], 1.0)
    held = f"{game['capture'] / hz:.1f} / {rules['capture_ticks'] / hz:g} s"
    panel.bar("capture (contested)" if game["contested"] else "capture", share, held, GOOD)
    left_s = (rules["stall_ticks"] - game["stall"]) / hz
    panel.bar("stall clock", game["stall"] / rules["stall_ticks"], f"{left_s:.0f} s left", WARN)
    panel.rule()
    names = [*simulator.scenario.level.attackers.units, *simulator.scenario.level.defenders.units]
    for u, name in enumerate(names):
        part = simulator.state.units["integrity"][0, u] / simulator.world.kinds["integrity"][u]
        panel.unit(name, max(part, 0.0), ATTACKER if u < simulator.num_attackers else DEFENDER)
    panel.rule()
    panel.reward({name.replace("_", " "): value for name, value in terms.items()})


def _open_window() -> pygame.Surface:
    named = any(os.environ.get(name) for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"))
    if sys.platform.startswith("linux") and not named:
        raise UsageError(
            "a window needs a display, but DISPLAY and WAYLAND_DISPLAY are not set; use "
            "render_mode='rgb_array' or record a video [render_mode='human']"
        )
    try:
        pygame.display.init()
        pygame.display.set_caption("Mission Gym: capture")
        return pygame.display.set_mode(SIZE_PX)
    except pygame.error as error:
        raise UsageError(
            f"the window cannot be opened ({error}); use render_mode='rgb_array' or record a video "
            "[render_mode='human']"
        ) from error
