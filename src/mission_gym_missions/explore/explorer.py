"""The mission without any I/O: episodes as generators that yield requests (`fetch.py`).

Both forms of the environment perform the requests and return the generators' results: an observation and an
info, or the five values of a step. As long as the site answers, results do not depend on timing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from pydantic import Field

from mission_gym.config.plain_yaml import YamlModel, check_tree, read_tree
from mission_gym.data import Array
from mission_gym.errors import ConfigError, EnvContractError, UsageError
from mission_gym_missions.explore.fetch import FAILURES, Fetched, Host, IoRequest, Pause, Response
from mission_gym_missions.explore.memory import Memory, SeenLink
from mission_gym_missions.explore.observation import BACK, FIRST_LINK, NEXT, STOP, num_features, observe
from mission_gym_missions.explore.pages import Page, Words, find_words, is_same_site, join, origin_of

SHIPPED = Path(__file__).parent / "rules.yaml"
OUTCOMES = ("found", "gave_up", "budget", "site_down")
_DOWN_S = 1.0  # between episodes without a site
_MAX_WORDS = 12  # of a title
Shown = tuple[Array, dict[str, Any]]
Stepped = tuple[Array, float, bool, bool, dict[str, Any]]
Count = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class ExploreTerms(YamlModel):
    found: Finite
    closer: Finite
    request: Finite
    step: Finite
    gave_up: Finite
    budget: Finite


class ExploreRules(YamlModel):
    """The values of the file, which documents their meaning."""

    budget: Annotated[int, Field(ge=2)]
    steps_per_request: Count
    max_links: Annotated[int, Field(ge=1, le=200)]
    terms: ExploreTerms


def load_rules(rules_file: str | Path | None) -> ExploreRules:
    """Read and check a file of rules, by default the shipped one; one ConfigError with every problem."""
    tree = read_tree(SHIPPED if rules_file is None else Path(rules_file))
    problems = list(tree.problems)
    rules: ExploreRules | None = None if problems else check_tree(ExploreRules, tree, problems)
    if problems or rules is None:
        raise ConfigError(problems)
    return rules


class Task(NamedTuple):
    """Where an episode starts, the page to find, and the words that describe it."""

    home: str
    target: str
    wanted: Words


class Tasks(Protocol):
    """Gives the task of an episode; None if the site cannot be reached."""

    def give(self, host: Host, number: int) -> Generator[IoRequest, Response | None, Task | None]: ...


class GeneratedTasks:
    """Tasks of the generated sites: each number has its own site, or all share one."""

    def __init__(self, site: int | None) -> None:
        self._site = site

    def give(self, host: Host, number: int) -> Generator[IoRequest, Response | None, Task | None]:
        site = number if self._site is None else self._site
        response = yield from host.request(join(host.base_url, f"/{site}/task/{number}"))
        if response.failure or response.status != 200:
            return None
        task = json.loads(response.body)
        home, target = (join(host.base_url, task[name]) for name in ("home", "target"))
        return Task(home, target, find_words(task["words"]))


class Target(NamedTuple):
    """A page of the user's site. Without words its title describes it."""

    url: str
    words: str = ""


class OwnTasks:
    """Pages of the user's site, one per episode."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._known: dict[Target, tuple[str, Words]] = {}

    def give(self, host: Host, number: int) -> Generator[IoRequest, Response | None, Task | None]:
        if not (yield from host.read_robots()):
            return None
        if not host.allows(host.base_url):
            raise EnvContractError(
                f"robots.txt does not allow {host.base_url}; start at a page that it allows [base_url]"
            )
        target = self._targets[number % len(self._targets)]
        if target not in self._known:
            fetched = yield from host.fetch(target.url)
            if fetched.is_down:
                return None
            self._known[target] = _describe(target, fetched)
        return Task(host.base_url, *self._known[target])


def _describe(target: Target, fetched: Fetched) -> tuple[str, Words]:
    """Return the address of a target, after redirects, and its words."""
    if target.words:  # it may load later, even if it fails now
        return target.url if fetched.failure else fetched.page.url, find_words(target.words)
    wanted = frozenset(sorted(fetched.page.title)[:_MAX_WORDS])
    if fetched.failure or not wanted:
        cause = fetched.failure or "its title has no words"
        raise EnvContractError(
            f"{target.url} cannot be a target ({cause}); name a page that loads, or describe it: "
            "`/path some words` [targets]"
        )
    return fetched.page.url, wanted


def read_targets(targets: str, base_url: str) -> list[Target]:
    """Read targets: paths separated by commas, or a file with one per line. Words may follow a path."""
    path = Path(targets)
    try:
        lines = path.read_text("utf-8").splitlines() if path.is_file() else targets.split(",")
    except (OSError, ValueError) as error:
        raise UsageError(f"targets={targets}: the file cannot be read ({error}) [targets]") from error
    found = []
    for line in lines:
        address, _, words = line.strip().partition(" ")
        if not address or address.startswith("#"):
            continue
        url = join(base_url, address)
        if not url or not is_same_site(url, base_url):
            raise UsageError(
                f"target {address!r} is not a page of {base_url}; use paths of that site [targets]"
            )
        found.append(Target(url, words.strip()))
    if not found:
        raise UsageError(
            f"targets={targets!r} names no page; give a path, or a file with one per line [targets]"
        )
    return found


class Counts(NamedTuple):
    """Requests, steps and retries of an episode."""

    requests: int = 0
    steps: int = 0
    retries: int = 0


class Explorer:
    """Plays episodes on one site, or on a new one in each episode."""

    def __init__(self, rules: ExploreRules, host: Host, tasks: Tasks) -> None:
        self.rules = rules
        self.num_actions = FIRST_LINK + rules.max_links
        self.num_features = num_features(rules.max_links)
        self.host, self._tasks = host, tasks
        self.memory = Memory(frozenset(), rules.max_links)
        self.task = Task("", "", frozenset())
        self.outcome: str | None = None
        self.counts = Counts()
        self.failures: Counter[str] = Counter()
        self.terms: dict[str, float] = {}  # of the episode so far
        self._is_down = False
        self._running = False

    def reset(self, number: int) -> Generator[IoRequest, Response | None, Shown]:
        """Begin the episode of a number. An unreachable site gives an empty page, and the first step ends the
        episode. TargetSilent if the site does not answer for long, or never did."""
        self._running = False
        self.outcome, self.counts, self.failures, self.terms = None, Counts(), Counter(), {}
        task = yield from self._tasks.give(self.host, number)
        while task is None and not self.host.health.has_answered:  # until it answers, or TargetSilent
            task = yield from self._tasks.give(self.host, number)
        self._is_down = task is None
        self.task = task or Task(self.host.base_url, "", frozenset())
        self.memory = Memory(self.task.wanted, self.rules.max_links)
        page = Page(self.task.home)
        if task is not None:
            fetched = yield from self.host.fetch(task.home)
            self._count(fetched)
            page, self._is_down = fetched.page, bool(fetched.failure)
        if self._is_down:
            yield Pause(_DOWN_S)
        self.memory.go_to(self.task.home, page, failed=self._is_down)
        self._running = True
        return self._observe(), {"outcome": None, "reward_terms": {}, "action_mask": self.read_mask()}

    def step(self, action: int) -> Generator[IoRequest, Response | None, Stepped]:
        """Take one step. A site that is down truncates the episode; every other end terminates it."""
        if not self._running:
            raise UsageError("step() before reset(), or after the end of the episode; reset first")
        if not 0 <= action < self.num_actions:
            raise UsageError(f"action {action} does not exist; actions are 0 to {self.num_actions - 1}")
        before, memory = self.counts, self.memory
        best = memory.best_similarity
        if not self._is_down and action >= NEXT and (link := self.find_link(action)) is not None:
            yield from self._follow(link)
        elif not self._is_down and action == BACK and len(memory.trail) > 1:
            memory.move_to(memory.trail[-2], back=True)
        self.counts = self.counts._replace(steps=self.counts.steps + 1)
        self.outcome = self._judge(action)
        terms = self._pay(self.counts.requests - before.requests, memory.best_similarity - best)
        for name, value in terms.items():
            self.terms[name] = self.terms.get(name, 0.0) + value
        info = {"outcome": self.outcome, "reward_terms": terms, "action_mask": self.read_mask()}
        ended = self.outcome is not None
        if ended:
            self._running = False
            info["episode_metrics"] = self._measure()
        down = self.outcome == "site_down"
        return self._observe(), sum(terms.values()), ended and not down, down, info

    def find_link(self, action: int) -> SeenLink | None:
        """Return the link that an action follows, if there is one."""
        if action == NEXT:
            return self.memory.here.next
        slot = action - FIRST_LINK
        return self.memory.slots[slot] if 0 <= slot < len(self.memory.slots) else None

    def read_mask(self) -> Array:
        """Return the mask int8 [actions]: 1 for actions that have an effect now."""
        mask = np.zeros(self.num_actions, np.int8)
        mask[STOP] = 1
        mask[BACK] = len(self.memory.trail) > 1
        mask[NEXT] = self.memory.here.next is not None
        mask[FIRST_LINK : FIRST_LINK + len(self.memory.slots)] = 1
        return mask

    def describe_target(self) -> tuple[str, str]:
        """Return the site, and how it answers."""
        return origin_of(self.host.base_url), self.host.describe_health()

    def get_state(self) -> dict[str, Any]:
        """Return everything that an exact continuation needs, as plain values."""
        return {
            "base_url": self.host.base_url,
            "task": [self.task.home, self.task.target, sorted(self.task.wanted)],
            "memory": self.memory.get_state(),
            "counts": list(self.counts),
            "failures": dict(self.failures),
            "terms": dict(self.terms),
            "outcome": self.outcome,
            "flags": [self._is_down, self._running],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue exactly from a state of `get_state`; the site may have another address now."""
        state = _replace_address(state, state["base_url"], self.host.base_url)
        home, target, wanted = state["task"]
        self.task = Task(home, target, frozenset(wanted))
        self.memory = Memory.restore(state["memory"], self.rules.max_links)
        self.counts = Counts(*state["counts"])
        self.failures, self.terms = Counter(state["failures"]), dict(state["terms"])
        self.outcome = state["outcome"]
        self._is_down, self._running = state["flags"]

    def _follow(self, link: SeenLink) -> Generator[IoRequest, Response | None, None]:
        """Go to a link's page: from memory if it was visited, otherwise by a request."""
        memory = self.memory
        if memory.graph.is_visited(link.node):
            memory.move_to(memory.resolve(link.node))
            return
        url = memory.graph.urls[link.node]
        fetched = yield from self.host.fetch(url)
        self._count(fetched)
        self._is_down = fetched.is_down
        if not fetched.is_down:
            memory.go_to(url, fetched.page, failed=bool(fetched.failure))

    def _count(self, fetched: Fetched) -> None:
        requests, steps, retries = self.counts
        self.counts = Counts(requests + fetched.num_requests, steps, retries + fetched.num_retries)
        if fetched.failure:
            self.failures[fetched.failure] += 1

    def _judge(self, action: int) -> str | None:
        if self._is_down:
            return "site_down"
        if self.memory.graph.urls[self.memory.node] == self.task.target:
            return "found"
        if action == STOP:
            return "gave_up"
        rules, used = self.rules, self.counts
        if used.requests >= rules.budget or used.steps >= rules.budget * rules.steps_per_request:
            return "budget"
        return None

    def _pay(self, num_requests: int, closer: float) -> dict[str, float]:
        weights = self.rules.terms
        terms = dict.fromkeys(ExploreTerms.model_fields, 0.0)
        terms |= {
            "closer": weights.closer * closer,
            "request": weights.request * num_requests,
            "step": weights.step,
        }
        if self.outcome in terms:
            terms[self.outcome] = getattr(weights, self.outcome)
        return {name: value + 0.0 for name, value in terms.items()}

    def _observe(self) -> Array:
        rules, used = self.rules, self.counts
        requests_left = max(0.0, 1 - used.requests / rules.budget)
        steps_left = max(0.0, 1 - used.steps / (rules.budget * rules.steps_per_request))
        return observe(self.memory, rules.max_links, requests_left, steps_left)

    def _measure(self) -> dict[str, float]:
        graph = self.memory.graph
        metrics = {
            "requests": self.counts.requests,
            "retries": self.counts.retries,
            "pages": graph.num_visited,
            "seen": len(graph),
            "depth": graph.distances[self.memory.node],
        }
        metrics |= {f"failed_{name}": self.failures[name] for name in FAILURES}
        return {name: float(value) for name, value in metrics.items()}


def _replace_address(value: Any, old: str, new: str) -> Any:
    """Return plain values in which URLs of the old site are those of the new one."""
    if isinstance(value, dict):
        return {key: _replace_address(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_address(item, old, new) for item in value]
    return new + value.removeprefix(old) if isinstance(value, str) and value.startswith(old) else value
