"""What to find: on the generated sites the server says it, on a site of the user's own it is one of some
pages."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from mission_gym.errors import EnvContractError, UsageError
from mission_gym_missions.explore.exchange import Fetched, Host
from mission_gym_missions.explore.pages import Words, find_words, is_same_site, join
from mission_gym_missions.explore.wishes import Answer, Wish

_MAX_WORDS = 12  # of a title


class Task(NamedTuple):
    """Where to begin, where to end, and the words that describe the end."""

    home: str
    target: str
    wanted: Words


class Tasks(Protocol):
    """Gives the task of an episode; None if the site can't be reached."""

    def give(self, host: Host, number: int) -> Generator[Wish, Answer | None, Task | None]: ...


class GeneratedTasks:
    """Those of the generated sites: every number has its own site, or all have the same."""

    def __init__(self, site: int | None) -> None:
        self._site = site

    def give(self, host: Host, number: int) -> Generator[Wish, Answer | None, Task | None]:
        site = number if self._site is None else self._site
        answer = yield from host.ask(join(host.base_url, f"/{site}/task/{number}"))
        if answer.failure or answer.status != 200:
            return None
        told = json.loads(answer.body)
        home, target = (join(host.base_url, told[name]) for name in ("home", "target"))
        return Task(home, target, find_words(told["words"]))


class Target(NamedTuple):
    """A page of the user's site; without words its title describes it."""

    url: str
    words: str = ""


class OwnTasks:
    """Pages of the user's site, one of them in each episode."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._known: dict[Target, tuple[str, Words]] = {}

    def give(self, host: Host, number: int) -> Generator[Wish, Answer | None, Task | None]:
        if not (yield from host.read_robots()):
            return None
        if not host.allows(host.base_url):
            raise EnvContractError(
                f"robots.txt does not allow {host.base_url}; begin at a page that it allows [base_url]"
            )
        target = self._targets[number % len(self._targets)]
        if target not in self._known:
            fetched = yield from host.fetch(target.url)
            if fetched.is_down:
                return None
            self._known[target] = _describe(target, fetched)
        return Task(host.base_url, *self._known[target])


def _describe(target: Target, fetched: Fetched) -> tuple[str, Words]:
    """The address that a target is found at, behind redirects, and its words."""
    if target.words:  # it may be found later, even if it can't be had now
        return target.url if fetched.failure else fetched.page.url, find_words(target.words)
    wanted = frozenset(sorted(fetched.page.title)[:_MAX_WORDS])
    if fetched.failure or not wanted:
        cause = fetched.failure or "its title has no words"
        raise EnvContractError(
            f"{target.url} can't be a target ({cause}); name a page that can be had, or describe it: "
            "`/path some words` [targets]"
        )
    return fetched.page.url, wanted


def read_targets(targets: str, base_url: str) -> list[Target]:
    """Targets by path, with commas between them, or one in each line of a file; words may follow the path."""
    path = Path(targets)
    try:
        lines = path.read_text("utf-8").splitlines() if path.is_file() else targets.split(",")
    except (OSError, ValueError) as error:
        raise UsageError(f"targets={targets}: the file can't be read ({error}) [targets]") from error
    found = []
    for line in lines:
        address, _, words = line.strip().partition(" ")
        if not address or address.startswith("#"):
            continue
        url = join(base_url, address)
        if not url or not is_same_site(url, base_url):
            raise UsageError(
                f"target {address!r} is not a page of {base_url}; give paths of that site [targets]"
            )
        found.append(Target(url, words.strip()))
    if not found:
        raise UsageError(
            f"targets={targets!r} names no page; give a path, or a file with one in each line [targets]"
        )
    return found
