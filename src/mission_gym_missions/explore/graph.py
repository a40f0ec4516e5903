"""The part of a site's link graph that an explorer has seen, with distances and page rank kept up to date.

Nodes are addresses: visited ones, and those only linked to (the frontier). Nothing is ever removed, so
updates are cheap: distances only fall, and page rank is propagated from new links alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DAMPING = 0.85
_SLACK = 1e-4  # smaller residuals are not passed on; ranks are at least 1
FAR = 1 << 20


class LinkGraph:
    """A growing directed graph.

    Page rank with a uniform restart, also from nodes without known links, is the normalized solution of
    x = 1 + d A x, where A divides a node's weight among its links. `_rank` is x up to the residuals that
    nodes have not passed on yet. A new node has rank 1; a visited node passes its rank on to its links.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self.urls: list[str] = []
        self.links: list[Sequence[int] | None] = []  # per node; None: not visited
        self.in_degrees: list[int] = []
        self.distances: list[int] = []  # from the first node
        self.num_visited = 0
        self.num_edges = 0
        self._rank: list[float] = []
        self._residual: list[float] = []
        self._total_rank = 0.0

    def __len__(self) -> int:
        return len(self.urls)

    @property
    def num_frontier(self) -> int:
        return len(self.urls) - self.num_visited

    def add(self, url: str) -> int:
        """Return the node of an address, a new one if it was not seen before."""
        node = self._ids.get(url)
        if node is None:
            node = self._ids[url] = len(self.urls)
            self.urls.append(url)
            self.links.append(None)
            self.in_degrees.append(0)
            self.distances.append(0 if node == 0 else FAR)
            self._rank.append(1.0)  # passed on when the node is visited
            self._residual.append(0.0)
            self._total_rank += 1.0
        return node

    def find(self, url: str) -> int | None:
        """Return the node of an address, if it was seen."""
        return self._ids.get(url)

    def is_visited(self, node: int) -> bool:
        return self.links[node] is not None

    def visit(self, node: int, urls: Iterable[str]) -> Sequence[int]:
        """Set a node's links, once; return their nodes."""
        assert self.links[node] is None
        links = tuple(self.add(url) for url in urls)
        self.links[node] = links
        self.num_visited += 1
        self.num_edges += len(links)
        for link in links:
            self.in_degrees[link] += 1
        self._shorten(node)
        self._pass_on(node)
        return links

    def rank(self, node: int) -> float:
        """Return the page rank times the number of nodes, so that 1 is the mean."""
        return self._rank[node] * len(self.urls) / self._total_rank

    def _shorten(self, node: int) -> None:
        queue = [node]
        for near in queue:  # grows while it is read
            distance = self.distances[near] + 1
            for link in self.links[near] or ():
                if distance < self.distances[link]:
                    self.distances[link] = distance
                    queue.append(link)

    def _pass_on(self, node: int) -> None:
        """Pass a node's rank on to its new links, and further until the residuals are small."""
        self._residual[node] = self._rank[node]
        queue = [node]
        for giver in queue:
            given, self._residual[giver] = self._residual[giver], 0.0
            links = self.links[giver]
            if not links or not given:
                continue
            share = DAMPING * given / len(links)
            for link in links:
                self._rank[link] += share
                self._total_rank += share
                if self.links[link] is not None:
                    self._residual[link] += share
                    if self._residual[link] > _SLACK >= self._residual[link] - share:
                        queue.append(link)
