"""Draws what an explorer has seen of a site: pages around the home page by their distance from it, and a
panel.

Everything is drawn at twice the size and scaled down, which smooths the edges. No display is needed.
"""

from __future__ import annotations

import math

import numpy as np
import pygame

from mission_gym.data import Array
from mission_gym_missions.explore.explorer import Explorer
from mission_gym_missions.explore.memory import Memory
from mission_gym_missions.pen import BAD, GOOD, PANEL_PX, PAPER, QUIET, TEXT, WARN, Color, Pen

MAP_PX = 720
SMOOTH = 2
MARGIN_PX = 40

GROUND, EDGE, WAY = (21, 27, 37), (48, 60, 80), (255, 206, 92)
FRONTIER, VISITED, ALIKE, FAILED = (70, 82, 102), (104, 136, 180), (104, 211, 129), (200, 92, 92)
Point = tuple[float, float]


def draw_explorer(explorer: Explorer) -> Array:
    """The episode as it stands: uint8 [H, W, 3]."""
    pygame.font.init()
    size = ((MAP_PX + PANEL_PX) * SMOOTH, MAP_PX * SMOOTH)
    canvas = pygame.Surface(size)
    field = canvas.subsurface((0, 0, MAP_PX * SMOOTH, MAP_PX * SMOOTH))
    _draw_graph(field, explorer)
    _draw_panel(Pen(canvas.subsurface((MAP_PX * SMOOTH, 0, PANEL_PX * SMOOTH, size[1])), SMOOTH), explorer)
    small = pygame.transform.smoothscale(canvas, (MAP_PX + PANEL_PX, MAP_PX))
    pixels = np.frombuffer(pygame.image.tobytes(small, "RGB"), np.uint8)
    return pixels.reshape(MAP_PX, MAP_PX + PANEL_PX, 3).copy()


def _draw_graph(field: pygame.Surface, explorer: Explorer) -> None:
    memory = explorer.memory
    field.fill(GROUND)
    places = _place(memory)
    for node, place in places.items():
        for link in memory.graph.links[node] or ():
            pygame.draw.aaline(field, EDGE, place, places[link])
    way = [places[node] for node in memory.trail]
    if len(way) > 1:
        pygame.draw.lines(field, WAY, False, way, SMOOTH)
    target = memory.graph.find(explorer.task.target)
    for node, place in places.items():
        color, radius = _show_node(memory, node)
        pygame.draw.circle(field, color, place, radius * SMOOTH)
        if node == target:
            pygame.draw.circle(field, ALIKE, place, 11 * SMOOTH, 2 * SMOOTH)
    pygame.draw.circle(field, WAY, places[memory.node], 9 * SMOOTH, 2 * SMOOTH)


def _show_node(memory: Memory, node: int) -> tuple[Color, float]:
    """Colour and size: visited pages larger, greener the more they resemble the target."""
    if not memory.graph.is_visited(node):
        return FRONTIER, 2.0
    view = memory.views[node]
    if not view.is_read:
        return FAILED, 5.0
    share = view.title_similarity
    mixed = [round(a + share * (b - a)) for a, b in zip(VISITED, ALIKE, strict=True)]
    return (mixed[0], mixed[1], mixed[2]), 5.0


def _place(memory: Memory) -> dict[int, Point]:
    """Every node on the ring of its distance, in the part of the circle of the page it was first seen on."""
    graph = memory.graph
    children: dict[int, list[int]] = {}
    seen = {0}
    for node in memory.views:  # in the order of the visits
        fresh = [link for link in dict.fromkeys(graph.links[node] or ()) if link not in seen]
        seen.update(fresh)
        children[node] = fresh
    widths: dict[int, float] = {}
    for node in reversed(range(len(graph))):  # pages are seen before those they lead to
        widths[node] = max(1.0, sum(widths[child] for child in children.get(node, ())))
    depth_of = {0: 0}
    spans = {0: (0.0, math.tau)}
    for node in range(len(graph)):
        if node not in spans:  # an own site may redirect to what no page links to
            spans[node], depth_of[node] = (0.0, math.tau), 1
        start, span = spans[node]
        for child in children.get(node, ()):
            part = span * widths[child] / widths[node]
            spans[child], depth_of[child] = (start, part), depth_of[node] + 1
            start += part
    rings = max(depth_of.values()) or 1
    radius = (MAP_PX / 2 - MARGIN_PX) * SMOOTH / rings
    middle = MAP_PX / 2 * SMOOTH
    places = {}
    for node, (start, span) in spans.items():
        angle, away = start + span / 2, radius * depth_of[node]
        places[node] = (middle + away * math.cos(angle), middle + away * math.sin(angle))
    return places


def _draw_panel(pen: Pen, explorer: Explorer) -> None:
    memory, rules, used = explorer.memory, explorer.rules, explorer.counts
    graph = memory.graph
    pen.fill(PAPER)
    pen.text("EXPLORE", 24, TEXT)
    pen.text(f"step {used.steps}", 18, QUIET, right=True)
    pen.down(34)
    colors: dict[str | None, Color] = {None: QUIET, "found": GOOD}
    pen.badge(
        "in progress" if explorer.outcome is None else explorer.outcome, colors.get(explorer.outcome, BAD)
    )
    pen.down(40)
    pen.text("wanted", 16, QUIET)
    pen.down(20)
    for line in _wrap(sorted(memory.wanted), 34):
        pen.text(line, 17, TEXT)
        pen.down(19)
    pen.down(8)
    pen.bar("this page's title", memory.here.title_similarity, f"{memory.here.title_similarity:.2f}", ALIKE)
    pen.bar(
        "best link not visited", memory.find_best_frontier(), f"{memory.find_best_frontier():.2f}", VISITED
    )
    pen.bar("requests", used.requests / rules.budget, f"{used.requests} of {rules.budget}", WARN)
    pen.rule()
    facts = {
        "pages visited": graph.num_visited,
        "pages seen": len(graph),
        "away from home": graph.distances[memory.node],
        "could not be had": memory.num_failed,
    }
    for name, count in facts.items():
        pen.text(name, 16, QUIET)
        pen.text(str(count), 16, TEXT, right=True)
        pen.down(20)
    pen.rule()
    pen.text("reward", 16, QUIET)
    pen.text(f"{sum(explorer.terms.values()):+.2f}", 20, TEXT, right=True)
    pen.down(26)
    largest = max((abs(value) for value in explorer.terms.values()), default=0.0) or 1.0
    for name, value in explorer.terms.items():
        pen.term(name, value, largest)


def _wrap(words: list[str], width: int) -> list[str]:
    lines = [""]
    for word in words[:12]:
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
