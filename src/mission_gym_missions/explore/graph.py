"""The part of a site's link graph that an explorer has seen, with what is known of it kept from page to page.

Nodes are addresses, those that were visited and those that were only linked to: the frontier. Nothing is ever
taken away, which is what makes it cheap: distances only fall, and the page rank is moved on by what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DAMPING = 0.85
_SLACK = 1e-4  # residuals below this are left, of ranks of at least 1
FAR = 1 << 20


class LinkGraph:
    """A growing directed graph.

    Page rank: with p the rank, a uniform restart, and nodes without known links restarting too, p is the
    normalised solution of x = 1 + d A x, where A divides a node's weight among its links. `_rank` is x up to
    residuals: a node's x plus what `_residual` still has to pass on. A new node adds 1 to its own residual; a
    node that is visited passes what it has gathered on to its links.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self.urls: list[str] = []
        self.links: list[Sequence[int] | None] = []  # of each node; None: not visited
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
        """The node of an address, a new one if it was not seen."""
        node = self._ids.get(url)
        if node is None:
            node = self._ids[url] = len(self.urls)
            self.urls.append(url)
            self.links.append(None)
            self.in_degrees.append(0)
            self.distances.append(0 if node == 0 else FAR)
            self._rank.append(1.0)  # nothing to pass on before it is visited
            self._residual.append(0.0)
            self._total_rank += 1.0
        return node

    def find(self, url: str) -> int | None:
        """The node of an address, if it was seen."""
        return self._ids.get(url)

    def is_visited(self, node: int) -> bool:
        return self.links[node] is not None

    def visit(self, node: int, urls: Iterable[str]) -> Sequence[int]:
        """Note a node's links, once; returns their nodes."""
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
        """Page rank, times the number of nodes: 1 is the mean."""
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
        """Give what a node has gathered to its new links, and so on while it matters."""
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
