"""Scripted explorers. Each reads the explorer's memory and returns the next action.

breadth_first visits pages in the order they were seen. greedy visits the page whose link resembles the target
most, wherever it was seen. Both walk there over visited pages, which costs no request. random draws among the
actions that have an effect and never stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mission_gym.streams import generator
from mission_gym_missions.explore.explorer import Explorer
from mission_gym_missions.explore.observation import BACK, NEXT, STOP

ExplorePolicy = Callable[[Any, dict[str, Any]], int]  # observation, info -> action


def make_baselines(explorer: Explorer) -> dict[str, ExplorePolicy]:
    """Return the baselines of an explorer, by name."""
    rng = generator("explore", "random")

    def draw(obs: Any, info: dict[str, Any]) -> int:
        legal = np.flatnonzero(info["action_mask"])
        moves = legal[legal != STOP]
        return int(rng.choice(moves)) if len(moves) else STOP

    return {
        "random": draw,
        "breadth_first": lambda obs, info: _walk(explorer, lambda node, similarity: float(node)),
        "greedy": lambda obs, info: _walk(explorer, lambda node, similarity: -similarity),
    }


def _walk(explorer: Explorer, cost: Callable[[int, float], float]) -> int:
    """Return an action on the way to the cheapest unvisited page; stop if there is none."""
    memory = explorer.memory
    graph = memory.graph
    first: dict[int, int] = {memory.node: -1}  # pages reachable over visited ones -> the first action
    depth = {memory.node: 0}
    queue = [memory.node]
    best, choice = (np.inf, np.inf), STOP
    for node in queue:  # grows while it is read
        for action, target, similarity in _moves(explorer, node):
            start = action if node == memory.node else first[node]
            if not graph.is_visited(target):
                rank = (cost(target, similarity), float(depth[node]))
                if rank < best:
                    best, choice = rank, start
                continue
            page = memory.resolve(target)
            if page not in first:
                first[page], depth[page] = start, depth[node] + 1
                queue.append(page)
    return choice


def _moves(explorer: Explorer, node: int) -> Iterable[tuple[int, int, float]]:
    """Yield action, target node and similarity of every way out of a visited page. On other pages than the
    current one the action does not matter, and is -1."""
    memory = explorer.memory
    if node != memory.node:
        yield from ((-1, link.node, link.similarity) for link in memory.views[node].links)
        return
    for action in range(NEXT, explorer.num_actions):
        if (link := explorer.find_link(action)) is not None:
            yield action, link.node, link.similarity
    if len(memory.trail) > 1:
        yield BACK, memory.trail[-2], 0.0
