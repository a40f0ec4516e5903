"""Draws a placement from above: demand, candidate sites, stations with their reach and queue, and a panel."""

from __future__ import annotations

import math

import numpy as np
import pygame

from mission_gym.data import Array
from mission_gym_missions.panel import (
    GOOD,
    MAP_PX,
    QUIET,
    SMOOTH,
    WARN,
    Color,
    Panel,
    Point,
    make_canvas,
    to_array,
)
from mission_gym_missions.placement.simulator import TERMS, PlacementSimulator

MARGIN_PX = 24  # around the city, for circles at its edge

GROUND, GRID = (21, 27, 37), (27, 34, 46)
FAR, COVERED = (150, 104, 92), (104, 196, 255)
SITE, STATION = (122, 136, 156), (255, 206, 92)


def draw_map(simulator: PlacementSimulator) -> Array:
    """Draw the first city of a simulator: uint8 [H, W, 3]."""
    canvas, town = make_canvas()
    _draw_town(town, simulator)
    _draw_panel(Panel(canvas), simulator)
    return to_array(canvas)


def _draw_town(town: pygame.Surface, simulator: PlacementSimulator) -> None:
    state, rules = simulator.state, simulator.mission.rules
    stations = [int(site) for site in state.order[0] if site >= 0]
    town.fill(GROUND)
    for metres in np.arange(0.0, rules.city_m, rules.city_m / 8):
        at = _at((metres / rules.city_m, metres / rules.city_m))
        pygame.draw.line(town, GRID, (at[0], 0), (at[0], MAP_PX * SMOOTH), SMOOTH)
        pygame.draw.line(town, GRID, (0, at[1]), (MAP_PX * SMOOTH, at[1]), SMOOTH)
    reach = rules.walk_m / rules.city_m * _scale()
    for site in stations:
        _blend_circle(town, _at(state.sites[0, site]), reach, COVERED, 26, 120)
    is_covered = state.least[0, len(stations)] <= simulator.city.scales[0]
    demand = state.demand[0]
    for p in np.argsort(-demand):
        at = _at(simulator.city.points[p])
        if stations:
            home = _at(state.sites[0, state.nearest[0, len(stations), p]])
            _blend_line(town, at, home, COVERED if is_covered[p] else FAR)
    for p in np.argsort(-demand):
        radius = 3 * SMOOTH + 17 * SMOOTH * math.sqrt(demand[p] / demand.max())
        color = COVERED if is_covered[p] else FAR
        _blend_circle(town, _at(simulator.city.points[p]), radius, color, 110, 220)
    for site in range(simulator.mission.num_sites):
        if site not in stations:
            _draw_diamond(town, _at(state.sites[0, site]), 6.5 * SMOOTH, GROUND, SITE)
    for number, site in enumerate(stations, 1):
        at = _at(state.sites[0, site])
        _draw_diamond(town, at, 15 * SMOOTH, STATION, GROUND)
        word = pygame.font.Font(None, 20 * SMOOTH).render(str(number), True, GROUND)
        town.blit(word, (at[0] - word.get_width() / 2, at[1] - word.get_height() / 2 + SMOOTH))


def _draw_panel(panel: Panel, simulator: PlacementSimulator) -> None:
    mission, state = simulator.mission, simulator.state
    panel.title("PLACEMENT", "fixed" if mission.fixed else "random")
    panel.progress(f"{state.num_placed[0]} of {mission.num_stations} stations", f"{mission.num_sites} sites")
    panel.outcome(simulator.read_outcomes()[0], {"covered": GOOD})
    coverage, ridership, waiting_min = state.values[0]
    panel.bar(
        "covered", coverage, f"{100 * coverage:.0f} of {100 * mission.rules.covered_share:g} %", COVERED
    )
    panel.bar("riding", ridership, f"{100 * ridership:.0f} %", GOOD)
    panel.bar("waiting", waiting_min / mission.rules.queue_min, f"{waiting_min:.1f} min", WARN)
    panel.rule()
    panel.text("riders by station", 16, QUIET)
    panel.down(22)
    most = max(state.load[0].max(), 1e-9)
    for number, site in enumerate(state.order[0], 1):
        if site >= 0:
            load = state.load[0, site]
            panel.bar(f"{number}  (site {site})", load / most, f"{100 * load:.0f} %", STATION)
    panel.rule()
    worths = simulator.city.weights * state.values[0]
    panel.reward(dict(zip(TERMS, worths.tolist(), strict=True)))


def _scale() -> float:
    return float((MAP_PX - 2 * MARGIN_PX) * SMOOTH)


def _at(point: Array | Point) -> Point:
    return (
        MARGIN_PX * SMOOTH + float(point[0]) * _scale(),
        (MAP_PX - MARGIN_PX) * SMOOTH - float(point[1]) * _scale(),
    )


def _draw_diamond(surface: pygame.Surface, at: Point, size: float, fill: Color, edge: Color) -> None:
    points = [(at[0], at[1] - size), (at[0] + size, at[1]), (at[0], at[1] + size), (at[0] - size, at[1])]
    pygame.draw.polygon(surface, fill, points)
    pygame.draw.polygon(surface, edge, points, 2 * SMOOTH)


def _blend_circle(
    surface: pygame.Surface, at: Point, radius: float, color: Color, fill: int, edge: int
) -> None:
    """Draw a translucent disc over the map; fill and edge are opacities up to 255."""
    side = math.ceil(radius) + SMOOTH
    layer = pygame.Surface((2 * side, 2 * side), pygame.SRCALPHA)
    pygame.draw.circle(layer, (*color, fill), (side, side), radius)
    pygame.draw.circle(layer, (*color, edge), (side, side), radius, SMOOTH)
    surface.blit(layer, (at[0] - side, at[1] - side))


def _blend_line(surface: pygame.Surface, start: Point, end: Point, color: Color) -> None:
    """Draw a thin line from a demand point to its station."""
    mixed = tuple((2 * ground + part) // 3 for ground, part in zip(GROUND, color, strict=True))
    pygame.draw.line(surface, mixed, start, end, SMOOTH)
