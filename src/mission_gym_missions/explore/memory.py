"""An explorer's memory of an episode: the pages it has read, its trail and the link graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mission_gym_missions.explore.graph import LinkGraph
from mission_gym_missions.explore.pages import Page, PageLink, Words, compare


class SeenLink(NamedTuple):
    """A link of a page, rated by its relation to the target."""

    node: int
    similarity: float
    coverage: float  # share of the target's words that it contains
    num_words: int
    in_frame: bool
    in_aside: bool
    shared_path: float  # share of leading path parts that page and link have in common


@dataclass(frozen=True, slots=True)
class View:
    """A visited page, rated by its relation to the target."""

    node: int
    is_read: bool  # it loaded
    title_similarity: float
    text_similarity: float
    links: Sequence[SeenLink]  # all, in page order
    next: SeenLink | None  # the link to the next page of a list


class Memory:
    """The memory of one episode: a function of its visits and moves, in order."""

    def __init__(self, wanted: Words, max_links: int) -> None:
        self.wanted = wanted
        self.graph = LinkGraph()
        self.views: dict[int, View] = {}
        self.trail: list[int] = []  # visited nodes, the current one last
        self.slots: list[SeenLink] = []  # the links that can be followed, best first
        self.best_similarity = 0.0  # of a title, so far
        self.came_back = False
        self.num_failed = 0
        self._max_links = max_links
        self._appeal: dict[int, float] = {}  # frontier node -> best similarity of a link to it
        self._visits: list[tuple[str, Page, bool]] = []

    @property
    def node(self) -> int:
        return self.trail[-1]

    @property
    def here(self) -> View:
        return self.views[self.trail[-1]]

    def go_to(self, url: str, page: Page, failed: bool = False) -> None:
        """Arrive at the page fetched from an address."""
        self._visits.append((url, page, failed))
        graph, asked, node = self.graph, self.graph.add(url), self.graph.add(page.url)
        if asked != node and not graph.is_visited(asked):  # redirected
            graph.visit(asked, [page.url])
            self._appeal.pop(asked, None)
            self.views[asked] = View(asked, not failed, 0.0, 0.0, (), None)
        if not graph.is_visited(node):
            self._read(node, page, failed)
        self.move_to(node)

    def move_to(self, node: int, back: bool = False) -> None:
        """Move to a visited page; back: to the previous one."""
        if back:
            self.trail.pop()
        else:
            self.trail.append(node)
        self.came_back = back
        graph, view = self.graph, self.here
        others = [link for link in view.links if link is not view.next]
        others.sort(key=lambda link: (graph.is_visited(link.node), -link.similarity))
        self.slots = others[: self._max_links]

    def resolve(self, node: int) -> int:
        """Return the page that a visited address leads to: itself, or the target of its redirect."""
        links = self.graph.links[node]
        is_redirect = links is not None and len(links) == 1 and not self.views[node].links
        return links[0] if is_redirect and links else node

    def find_best_frontier(self) -> float:
        """Return the highest similarity of a link to an unvisited page."""
        return max(self._appeal.values(), default=0.0)

    def _read(self, node: int, page: Page, failed: bool) -> None:
        parts = _split(page.url)
        nodes = self.graph.visit(node, [link.url for link in page.links])
        self._appeal.pop(node, None)
        links = [self._rate(link, target, parts) for link, target in zip(page.links, nodes, strict=True)]
        following = [seen for seen, link in zip(links, page.links, strict=True) if link.is_next]
        title, text = compare(page.title, self.wanted), compare(page.text, self.wanted)
        self.views[node] = View(node, not failed, title, text, links, following[0] if following else None)
        self.best_similarity = max(self.best_similarity, title)
        self.num_failed += failed

    def _rate(self, link: PageLink, node: int, parts: list[str]) -> SeenLink:
        similarity = compare(link.words, self.wanted)
        if not self.graph.is_visited(node):
            self._appeal[node] = max(similarity, self._appeal.get(node, 0.0))
        theirs = _split(link.url)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(parts, theirs, strict=False)))
        path = shared / max(1, len(parts), len(theirs))
        coverage = len(link.words & self.wanted) / max(1, len(self.wanted))
        return SeenLink(node, similarity, coverage, len(link.words), link.in_frame, link.in_aside, path)

    def get_state(self) -> dict[str, Any]:
        """Return everything that `restore` needs, as plain values."""
        visits = []
        for url, page, failed in self._visits:
            links = [[link.url, sorted(link.words), *link[2:]] for link in page.links]
            visits.append([url, page.url, sorted(page.title), sorted(page.text), links, failed])
        return {
            "wanted": sorted(self.wanted),
            "visits": visits,
            "trail": list(self.trail),
            "came_back": self.came_back,
        }

    @classmethod
    def restore(cls, state: dict[str, Any], max_links: int) -> Memory:
        """Rebuild a memory from a state of `get_state`."""
        memory = cls(frozenset(state["wanted"]), max_links)
        for url, address, title, text, links, failed in state["visits"]:
            page = Page(
                address,
                frozenset(title),
                frozenset(text),
                tuple(PageLink(link[0], frozenset(link[1]), *link[2:]) for link in links),
            )
            memory.go_to(url, page, failed)
        *memory.trail, node = state["trail"]
        memory.move_to(node)
        memory.came_back = state["came_back"]
        return memory


def _split(url: str) -> list[str]:
    return [part for part in urlsplit(url).path.split("/") if part]
