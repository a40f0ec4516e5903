"""Reads robots.txt (RFC 9309) and decides which addresses may be requested.

The standard library's parser supports no wildcards and takes the first rule that matches, not the longest.
Nothing in the file is trusted: its size is bounded, and no pattern takes long to match.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_MAX_CHARS = 512_000
_MAX_WILD = 1000  # rules with wildcards; each one is tried
_TOKEN = re.compile(r"[a-z_-]*")


class _Group(NamedTuple):
    agents: list[str]
    rules: list[tuple[str, bool]]  # pattern, whether it allows
    delays_s: list[float]


class Robots:
    """The rules of a robots.txt for one agent."""

    def __init__(self, text: str, agent: str) -> None:
        groups = _read_groups(text[:_MAX_CHARS])
        mine = [group for group in groups if agent in group.agents]
        mine = mine or [group for group in groups if "*" in group.agents]
        self.delay_s = max((delay_s for group in mine for delay_s in group.delays_s), default=0.0)
        self._prefixes: dict[str, bool] = {}
        self._wild: list[tuple[str, bool]] = []
        for pattern, allows in (rule for group in mine for rule in group.rules):
            if "*" in pattern or pattern.endswith("$"):
                self._wild.append((pattern, allows))
            else:
                self._prefixes[pattern] = allows or self._prefixes.get(pattern, False)
        self._wild = sorted(self._wild, key=lambda rule: (-len(rule[0]), not rule[1]))[:_MAX_WILD]
        self._lengths = sorted({len(pattern) for pattern in self._prefixes}, reverse=True)

    def allows(self, url: str) -> bool:
        """Whether an address may be requested: the longest matching pattern decides, and of two equally long
        ones the one that allows."""
        parts = urlsplit(url)
        path = unquote(parts.path + (f"?{parts.query}" if parts.query else "")) or "/"
        length, allows = next(
            ((size, self._prefixes[path[:size]]) for size in self._lengths if path[:size] in self._prefixes),
            (0, True),
        )
        for pattern, wild_allows in self._wild:
            if len(pattern) < length:
                break
            if fits(pattern, path):
                return allows or wild_allows if len(pattern) == length else wild_allows
        return allows


def fits(pattern: str, path: str) -> bool:
    """Whether a path starts with a pattern; * matches anything, and a final $ the end of the path."""
    closed = pattern.endswith("$")
    first, *others = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    if not others:
        return not closed or path == first
    index, *middle, last = len(first), *others
    for part in middle:  # the earliest match leaves the most for the rest
        index = path.find(part, index)
        if index < 0:
            return False
        index += len(part)
    if closed:
        return len(path) - len(last) >= index and path.endswith(last)
    return path.find(last, index) >= 0


def _read_groups(text: str) -> list[_Group]:
    """Read the groups of a file; rules apply to all agents named right before them."""
    groups: list[_Group] = []
    names_agents = False
    for line in text.splitlines():
        key, colon, value = line.partition("#")[0].partition(":")
        key, value = key.strip().lower(), value.strip()
        if not colon:
            continue
        if key == "user-agent":
            if not names_agents:
                groups.append(_Group([], [], []))
            found = _TOKEN.match(value.lower())
            groups[-1].agents.append("*" if value == "*" else found[0] if found else "")
            names_agents = True
            continue
        if groups and key in ("allow", "disallow", "crawl-delay"):
            names_agents = False
            if key != "crawl-delay" and value:
                groups[-1].rules.append((unquote(value), key == "allow"))
            elif key == "crawl-delay" and re.fullmatch(r"\d{1,6}(\.\d{1,6})?", value):
                groups[-1].delays_s.append(float(value))
    return groups
