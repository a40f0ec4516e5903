"""Explorers that nobody taught. Each looks at the explorer's memory and gives the next action.

breadth_first visits pages in the order in which they were seen, greedy the one whose link resembles the
target most, wherever it was seen; both walk there over pages that were visited, which costs no request.
random is ours: it draws among the actions that do something, but never stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mission_gym.streams import generator
from mission_gym_missions.explore.explorer import Explorer
from mission_gym_missions.explore.observation import BACK, NEXT, STOP

Policy = Callable[[Any, dict[str, Any]], int]  # observation, info -> action


def make_baselines(explorer: Explorer) -> dict[str, Policy]:
    """The baselines of one explorer, by name."""
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
    """One action on the way to the cheapest page that was not visited; stop if there is none."""
    memory = explorer.memory
    graph = memory.graph
    first: dict[int, int] = {memory.node: -1}  # pages that can be reached over visited ones: the first action
    depth = {memory.node: 0}
    queue = [memory.node]
    best, choice = (np.inf, np.inf), STOP
    for node in queue:  # grows while it is read
        moves: Iterable[tuple[int, int, float]] = _moves(explorer, node)
        for action, target, similarity in moves:
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
    """Action, node it leads to and similarity, for every way out of a visited page. Only here is the order of
    the slots known; elsewhere the action does not matter."""
    memory = explorer.memory
    if node != memory.node:
        yield from ((-1, link.node, link.similarity) for link in memory.views[node].links)
        return
    for action in range(NEXT, explorer.num_actions):
        if (link := explorer.find_link(action)) is not None:
            yield action, link.node, link.similarity
    if len(memory.trail) > 1:
        yield BACK, memory.trail[-2], 0.0
