"""Draws a territory game from above: terrain, nations with their borders, and a panel.

Cells are painted with array arithmetic and scaled down, which smooths the borders.
"""

from __future__ import annotations

import colorsys

import numpy as np
import pygame

from mission_gym.data import Array
from mission_gym_missions.env import ROW
from mission_gym_missions.panel import GOOD, MAP_PX, QUIET, SMOOTH, WARN, Color, Panel, make_canvas, to_array
from mission_gym_missions.territory.sim.layout import AGENT, CHARACTERS, NEUTRAL, ROCK, WATER
from mission_gym_missions.territory.simulator import TerritorySimulator

NUM_LISTED = 8  # nations in the panel

LAND_COLOR, WATER_COLOR, ROCK_COLOR = (58, 66, 60), (24, 52, 88), (30, 31, 36)
AGENT_COLOR, AGENT_BORDER = (64, 196, 255), (235, 250, 255)


def find_color(nation: int) -> Color:
    """Return a nation's colour. Those of bots step by the golden angle and avoid the agent's blue."""
    if nation == AGENT:
        return AGENT_COLOR
    hue = (nation * 0.618034) % 1.0 * 0.76 + 0.64  # from violet over red and yellow to green
    parts = colorsys.hsv_to_rgb(hue % 1.0, 0.62 if nation % 2 else 0.5, 0.86 if nation % 3 else 0.66)
    red, green, blue = (round(255 * part) for part in parts)
    return red, green, blue


def draw_game(simulator: TerritorySimulator) -> Array:
    """Draw the first game of a simulator: uint8 [H, W, 3]."""
    canvas, _ = make_canvas()
    painted = pygame.image.frombuffer(*_paint_map(simulator), "RGB")
    canvas.blit(pygame.transform.smoothscale(painted, (MAP_PX * SMOOTH, MAP_PX * SMOOTH)), (0, 0))
    _draw_panel(Panel(canvas), simulator)
    return to_array(canvas)


def _paint_map(simulator: TerritorySimulator) -> tuple[bytes, tuple[int, int]]:
    """Return the pixels of the map as bytes, and their size."""
    size = simulator.mission.size
    cells = simulator.state.cells[0].reshape(size + 2, size + 2)[1:-1, 1:-1]
    colors = np.zeros((256, 3))
    colors[NEUTRAL], colors[WATER], colors[ROCK] = LAND_COLOR, WATER_COLOR, ROCK_COLOR
    nations = simulator.state.nations[0]
    for p in range(1, len(nations)):
        light = 0.6 + 0.4 * min(nations["density"][p] / simulator.mission.rules.land_cap, 1.0)
        colors[p] = np.array(find_color(p)) * light
    scale = -(-MAP_PX * SMOOTH // size)
    image = colors[cells]
    grain = np.random.default_rng(0).uniform(0.94, 1.06, (size, size, 1))  # so that land does not look flat
    image = np.where((cells >= WATER)[..., None] | (cells == NEUTRAL)[..., None], image * grain, image)
    image = image.repeat(scale, axis=0).repeat(scale, axis=1)
    _draw_borders(image, cells, scale)
    return image.clip(0, 255).astype(np.uint8).tobytes(), (size * scale, size * scale)


def _draw_borders(image: Array, cells: Array, scale: int) -> None:
    """Darken the edges of nations; the agent's own are light."""
    line = max(scale // 8, 1)
    for axis in (0, 1):
        for forward in (True, False):
            neighbour = np.roll(cells, -1 if forward else 1, axis)
            edge = (cells != neighbour) & (cells != NEUTRAL) & (cells < WATER)
            rim = np.zeros((scale, scale), np.bool_)
            strip = rim[-line:] if forward else rim[:line]
            strip[:] = True
            rim = rim if axis == 0 else rim.T
            for of_agent, shade in ((False, None), (True, AGENT_BORDER)):
                chosen = np.kron(edge & ((cells == AGENT) == of_agent), rim).astype(np.bool_)
                image[chosen] = shade if shade is not None else 0.45 * image[chosen]


def _draw_panel(panel: Panel, simulator: TerritorySimulator) -> None:
    mission, game, nations = simulator.mission, simulator.state.games[0], simulator.state.nations[0]
    panel.title("TERRITORY", f"{mission.size} x {mission.size}")
    panel.progress(f"step {game['step']} of {mission.max_steps}", f"{mission.num_bots} bots")
    panel.outcome(simulator.read_outcomes()[0], {"victory": GOOD, "timeout": WARN})
    own, total = nations[AGENT], game["total"]
    cap = mission.rules.cap + mission.rules.land_cap * own["land"]
    share, goal = 100 * own["land"] / total, mission.rules.victory_percent
    panel.bar("land", share / goal, f"{share:.1f} of {goal} %", AGENT_COLOR)
    panel.bar("troops", own["troops"] / cap, f"{own['troops']:,} of {cap:,}", GOOD)
    rank = int(simulator.read_ranks(ROW)[0])
    panel.bar("rank", 1.0 - (rank - 1) / mission.num_bots, f"{rank} of {mission.num_bots + 1}", WARN)
    panel.rule()
    panel.text("nations by land", 16, QUIET)
    panel.down(24)
    order = sorted(range(1, len(nations)), key=lambda p: (-nations["land"][p], p))
    largest = max(int(nations["land"][order[0]]), 1)
    for p in order[:NUM_LISTED]:
        land = int(nations["land"][p])
        name = "you" if p == AGENT else f"{CHARACTERS[nations['character'][p]]} {p}"
        value = f"{land:,} cells, {nations['density'][p]} each" if land else "eliminated"
        panel.bar(name, land / largest, value, find_color(p))
