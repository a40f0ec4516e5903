"""The observation: features of the page, of each link that can be followed, and of the link graph so far.

Layout, float32 in [0, 1]: PAGE_FEATURES, then LINK_FEATURES per slot, the slot of `next` first. Slots without
a link are zero.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mission_gym.data import Array

if TYPE_CHECKING:
    from mission_gym_missions.explore.memory import Memory, SeenLink

STOP, BACK, NEXT, FIRST_LINK = range(4)  # actions
PAGE_FEATURES = 24
LINK_FEATURES = 12


def num_features(max_links: int) -> int:
    return PAGE_FEATURES + LINK_FEATURES * (1 + max_links)


def observe(memory: Memory, max_links: int, requests_left: float, steps_left: float) -> Array:
    """Return the observation of the current page. requests_left, steps_left: shares of the budget."""
    values = _observe_page(memory, requests_left, steps_left)
    for link in (memory.here.next, *memory.slots):
        values += [0.0] * LINK_FEATURES if link is None else _observe_link(link, memory)
    values += [0.0] * (num_features(max_links) - len(values))
    return np.array(values, np.float32)


def _observe_page(memory: Memory, requests_left: float, steps_left: float) -> list[float]:
    view, graph, node = memory.here, memory.graph, memory.node
    new = sum(not graph.is_visited(link.node) for link in view.links)
    before = memory.views[memory.trail[-2]] if len(memory.trail) > 1 else None
    left = [link for link in before.links if not graph.is_visited(link.node)] if before else []
    return [
        float(view.is_read),
        view.title_similarity,
        view.text_similarity,
        memory.best_similarity,
        _scale(len(view.links), 64),
        new / max(1, len(view.links)),
        _scale(graph.distances[node], 16),
        _scale(len(memory.trail), 32),
        _scale(graph.in_degrees[node], 32),
        _scale(graph.rank(node), 16),
        float(memory.came_back),
        float(before is not None),
        max((link.similarity for link in left), default=0.0),
        len(left) / max(1, len(before.links)) if before else 0.0,
        float(bool(before and before.next and not graph.is_visited(before.next.node))),
        float(before is not None and before.title_similarity > view.title_similarity),
        _scale(len(graph), 1024),
        _scale(graph.num_visited, 64),
        _scale(graph.num_frontier, 1024),
        _scale(graph.num_edges / max(1, graph.num_visited), 64),
        memory.find_best_frontier(),
        memory.num_failed / max(1, graph.num_visited),
        requests_left,
        steps_left,
    ]


def _observe_link(link: SeenLink, memory: Memory) -> list[float]:
    graph, node = memory.graph, link.node
    visited = graph.is_visited(node)
    return [
        1.0,
        link.similarity,
        link.coverage,
        float(visited),
        float(visited and not memory.views[node].is_read) if node in memory.views else 0.0,
        float(link.in_frame),
        float(link.in_aside),
        _scale(link.num_words, 16),
        link.shared_path,
        _scale(graph.in_degrees[node], 32),
        _scale(graph.rank(node), 16),
        _scale(graph.distances[node], 16),
    ]


def _scale(value: float, largest: float) -> float:
    """Scale logarithmically from [0, largest] to [0, 1]."""
    return min(1.0, math.log1p(value) / math.log1p(largest))
