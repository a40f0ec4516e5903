"""Draws the part of a site that an explorer has seen: pages in rings around the home page, and a panel."""

from __future__ import annotations

import math
import textwrap

import pygame

from mission_gym.data import Array
from mission_gym_missions.explore.explorer import Explorer
from mission_gym_missions.explore.memory import Memory
from mission_gym_missions.panel import (
    GOOD,
    MAP_PX,
    QUIET,
    SMOOTH,
    TEXT,
    WARN,
    Color,
    Panel,
    Point,
    make_canvas,
    to_array,
)

MARGIN_PX = 40

GROUND, EDGE, TRAIL = (21, 27, 37), (48, 60, 80), (255, 206, 92)
FRONTIER, VISITED, ALIKE, FAILED = (70, 82, 102), (104, 136, 180), (104, 211, 129), (200, 92, 92)


def draw_explorer(explorer: Explorer) -> Array:
    """Draw the episode so far: uint8 [H, W, 3]."""
    canvas, field = make_canvas()
    _draw_graph(field, explorer)
    _draw_panel(Panel(canvas), explorer)
    return to_array(canvas)


def _draw_graph(field: pygame.Surface, explorer: Explorer) -> None:
    memory = explorer.memory
    field.fill(GROUND)
    points = _place_nodes(memory)
    for node, point in points.items():
        for link in memory.graph.links[node] or ():
            pygame.draw.aaline(field, EDGE, point, points[link])
    trail = [points[node] for node in memory.trail]
    if len(trail) > 1:
        pygame.draw.lines(field, TRAIL, False, trail, SMOOTH)
    target = memory.graph.find(explorer.task.target)
    for node, point in points.items():
        color, radius = _show_node(memory, node)
        pygame.draw.circle(field, color, point, radius * SMOOTH)
        if node == target:
            pygame.draw.circle(field, ALIKE, point, 11 * SMOOTH, 2 * SMOOTH)
    pygame.draw.circle(field, TRAIL, points[memory.node], 9 * SMOOTH, 2 * SMOOTH)


def _show_node(memory: Memory, node: int) -> tuple[Color, float]:
    """Return colour and size: visited pages are larger, and greener the more they resemble the target."""
    if not memory.graph.is_visited(node):
        return FRONTIER, 2.0
    view = memory.views[node]
    if not view.is_read:
        return FAILED, 5.0
    share = view.title_similarity
    mixed = [round(a + share * (b - a)) for a, b in zip(VISITED, ALIKE, strict=True)]
    return (mixed[0], mixed[1], mixed[2]), 5.0


def _place_nodes(memory: Memory) -> dict[int, Point]:
    """Place every node on the ring of its depth, within the sector of the page that first linked to it."""
    graph = memory.graph
    children: dict[int, list[int]] = {}
    seen = {0}
    for node in memory.views:  # in the order they were visited
        fresh = [link for link in dict.fromkeys(graph.links[node] or ()) if link not in seen]
        seen.update(fresh)
        children[node] = fresh
    widths: dict[int, float] = {}
    for node in reversed(range(len(graph))):  # a page is seen before those it links to
        widths[node] = max(1.0, sum(widths[child] for child in children.get(node, ())))
    depth_of = {0: 0}
    spans = {0: (0.0, math.tau)}
    for node in range(len(graph)):
        if node not in spans:  # a user's site may redirect to a page without links to it
            spans[node], depth_of[node] = (0.0, math.tau), 1
        start, span = spans[node]
        for child in children.get(node, ()):
            part = span * widths[child] / widths[node]
            spans[child], depth_of[child] = (start, part), depth_of[node] + 1
            start += part
    rings = max(depth_of.values()) or 1
    radius = (MAP_PX / 2 - MARGIN_PX) * SMOOTH / rings
    middle = MAP_PX / 2 * SMOOTH
    points = {}
    for node, (start, span) in spans.items():
        angle, away = start + span / 2, radius * depth_of[node]
        points[node] = (middle + away * math.cos(angle), middle + away * math.sin(angle))
    return points


def _draw_panel(panel: Panel, explorer: Explorer) -> None:
    memory, rules, used = explorer.memory, explorer.rules, explorer.counts
    graph, title, link = memory.graph, memory.here.title_similarity, memory.find_best_frontier()
    panel.title("EXPLORE", f"step {used.steps}")
    panel.outcome(explorer.outcome, {"found": GOOD})
    panel.text("wanted", 16, QUIET)
    panel.down(20)
    for line in textwrap.wrap(" ".join(sorted(memory.wanted)[:12]), 34) or [""]:
        panel.text(line, 17, TEXT)
        panel.down(19)
    panel.down(8)
    panel.bar("this page's title", title, f"{title:.2f}", ALIKE)
    panel.bar("best link not visited", link, f"{link:.2f}", VISITED)
    panel.bar("requests", used.requests / rules.budget, f"{used.requests} of {rules.budget}", WARN)
    panel.rule()
    facts = {
        "pages visited": graph.num_visited,
        "pages seen": len(graph),
        "away from home": graph.distances[memory.node],
        "failed to load": memory.num_failed,
    }
    for name, count in facts.items():
        panel.text(name, 16, QUIET)
        panel.text(str(count), 16, TEXT, right=True)
        panel.down(20)
    panel.rule()
    panel.reward(explorer.terms)
