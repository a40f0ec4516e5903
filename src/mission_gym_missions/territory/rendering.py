"""Draws a game from above: terrain, nations with their borders, and a panel. No display is needed.

Cells are painted by array arithmetic at twice the size and scaled down, which smooths the borders.
"""

from __future__ import annotations

import colorsys

import numpy as np
import pygame

from mission_gym.data import Array
from mission_gym_missions.pen import BAD, GOOD, PANEL_PX, PAPER, QUIET, TEXT, WARN, Color, Pen
from mission_gym_missions.territory.sim.layout import AGENT, CHARACTERS, NEUTRAL, ROCK, WATER
from mission_gym_missions.territory.simulator import Simulator

MAP_PX = 720
SMOOTH = 2
NUM_LISTED = 8  # nations of the panel

LAND_COLOR, WATER_COLOR, ROCK_COLOR = (58, 66, 60), (24, 52, 88), (30, 31, 36)
AGENT_COLOR, AGENT_BORDER = (64, 196, 255), (235, 250, 255)
_ROW = np.zeros(1, np.int64)


def find_color(nation: int) -> Color:
    """A nation's colour; those of bots go round the wheel by the golden angle, past the agent's blue."""
    if nation == AGENT:
        return AGENT_COLOR
    hue = (nation * 0.618034) % 1.0 * 0.76 + 0.64  # from violet over red and yellow to green
    parts = colorsys.hsv_to_rgb(hue % 1.0, 0.62 if nation % 2 else 0.5, 0.86 if nation % 3 else 0.66)
    red, green, blue = (round(255 * part) for part in parts)
    return red, green, blue


def draw_game(simulator: Simulator) -> Array:
    """The first game of a simulator as it stands: uint8 [H, W, 3]."""
    pygame.font.init()
    canvas = pygame.Surface(((MAP_PX + PANEL_PX) * SMOOTH, MAP_PX * SMOOTH))
    painted = pygame.image.frombuffer(*_paint_map(simulator), "RGB")
    canvas.blit(pygame.transform.smoothscale(painted, (MAP_PX * SMOOTH, MAP_PX * SMOOTH)), (0, 0))
    panel = canvas.subsurface((MAP_PX * SMOOTH, 0, PANEL_PX * SMOOTH, MAP_PX * SMOOTH))
    _draw_panel(Pen(panel, SMOOTH), simulator)
    small = pygame.transform.smoothscale(canvas, (MAP_PX + PANEL_PX, MAP_PX))
    pixels = np.frombuffer(pygame.image.tobytes(small, "RGB"), np.uint8)
    return pixels.reshape(MAP_PX, MAP_PX + PANEL_PX, 3).copy()


def _paint_map(simulator: Simulator) -> tuple[bytes, tuple[int, int]]:
    """The map as bytes of pixels, with its size."""
    size = simulator.mission.size
    cells = simulator.state.cells[0].reshape(size + 2, size + 2)[1:-1, 1:-1]
    colors = np.zeros((256, 3))
    colors[NEUTRAL], colors[WATER], colors[ROCK] = LAND_COLOR, WATER_COLOR, ROCK_COLOR
    nations = simulator.state.nations[0]
    for p in range(1, len(nations)):
        light = 0.6 + 0.4 * min(nations["density"][p] / simulator.mission.rules.land_cap, 1.0)
        colors[p] = np.array(find_color(p)) * light
    scale = -(-MAP_PX * SMOOTH // size)
    picture = colors[cells]
    grain = np.random.default_rng(0).uniform(0.94, 1.06, (size, size, 1))  # so that land does not look flat
    picture = np.where((cells >= WATER)[..., None] | (cells == NEUTRAL)[..., None], picture * grain, picture)
    picture = picture.repeat(scale, axis=0).repeat(scale, axis=1)
    _draw_borders(picture, cells, scale)
    return picture.clip(0, 255).astype(np.uint8).tobytes(), (size * scale, size * scale)


def _draw_borders(picture: Array, cells: Array, scale: int) -> None:
    """Darken the edges of nations; the agent's own are light."""
    line = max(scale // 8, 1)
    for axis in (0, 1):
        for forward in (True, False):
            beside = np.roll(cells, -1 if forward else 1, axis)
            edge = (cells != beside) & (cells != NEUTRAL) & (cells < WATER)
            rim = np.zeros((scale, scale), np.bool_)
            strip = rim[-line:] if forward else rim[:line]
            strip[:] = True
            rim = rim if axis == 0 else rim.T
            for of_agent, shade in ((False, None), (True, AGENT_BORDER)):
                chosen = np.kron(edge & ((cells == AGENT) == of_agent), rim).astype(np.bool_)
                picture[chosen] = shade if shade is not None else 0.45 * picture[chosen]


def _draw_panel(pen: Pen, simulator: Simulator) -> None:
    mission, game, nations = simulator.mission, simulator.state.games[0], simulator.state.nations[0]
    pen.fill(PAPER)
    pen.text("TERRITORY", 24, TEXT)
    pen.text(f"{mission.size} x {mission.size}", 18, QUIET, right=True)
    pen.down(34)
    pen.text(f"step {game['step']} of {mission.max_steps}", 20, TEXT)
    pen.text(f"{mission.num_bots} bots", 16, QUIET, right=True)
    pen.down(26)
    outcome = simulator.read_outcomes()[0]
    colors: dict[str | None, Color] = {None: QUIET, "victory": GOOD, "timeout": WARN}
    pen.badge("in progress" if outcome is None else outcome, colors.get(outcome, BAD))
    pen.down(40)
    own, total = nations[AGENT], game["total"]
    cap = mission.rules.cap + mission.rules.land_cap * own["land"]
    share, goal = 100 * own["land"] / total, mission.rules.victory_percent
    pen.bar("land", share / goal, f"{share:.1f} of {goal} %", AGENT_COLOR)
    pen.bar("troops", own["troops"] / cap, f"{own['troops']:,} of {cap:,}", GOOD)
    rank = int(simulator.read_ranks(_ROW)[0])
    pen.bar("rank", 1.0 - (rank - 1) / mission.num_bots, f"{rank} of {mission.num_bots + 1}", WARN)
    pen.rule()
    pen.text("nations by land", 16, QUIET)
    pen.down(24)
    order = sorted(range(1, len(nations)), key=lambda p: (-nations["land"][p], p))
    largest = max(int(nations["land"][order[0]]), 1)
    for p in order[:NUM_LISTED]:
        land = int(nations["land"][p])
        name = "you" if p == AGENT else f"{CHARACTERS[nations['character'][p]]} {p}"
        value = f"{land:,} cells, {nations['density'][p]} each" if land else "eliminated"
        pen.bar(name, land / largest, value, find_color(p))
