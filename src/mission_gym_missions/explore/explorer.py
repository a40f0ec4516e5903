"""The mission itself, without any network: one episode after the other, as generators that yield wishes.

Both forms of the environment fulfil the wishes (`exchange.py`) and hand on what comes back: an observation
and an info, or a step's five values. Results do not depend on how long anything took, as long as the site
answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym_missions.explore.exchange import FAILURES, Fetched, Host
from mission_gym_missions.explore.memory import Memory, SeenLink
from mission_gym_missions.explore.observation import BACK, FIRST_LINK, NEXT, STOP, num_features, observe
from mission_gym_missions.explore.pages import Page, origin_of
from mission_gym_missions.explore.rules import Rules
from mission_gym_missions.explore.tasks import Task, Tasks
from mission_gym_missions.explore.wishes import Answer, Pause, Wish

OUTCOMES = ("found", "gave_up", "budget", "site_down")
_DOWN_S = 1.0  # between episodes without a site
Shown = tuple[Array, dict[str, Any]]
Stepped = tuple[Array, float, bool, bool, dict[str, Any]]


class Counts(NamedTuple):
    """What an episode has used."""

    requests: int = 0
    steps: int = 0
    retries: int = 0


class Explorer:
    """Plays episodes on one site, or on one after the other."""

    def __init__(self, rules: Rules, host: Host, tasks: Tasks) -> None:
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

    def reset(self, number: int) -> Generator[Wish, Answer | None, Shown]:
        """Begin the episode of a number. A site that can't be reached shows an empty page, and the first step
        ends the episode."""
        self._running = False
        self.outcome, self.counts, self.failures, self.terms = None, Counts(), Counter(), {}
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

    def step(self, action: int) -> Generator[Wish, Answer | None, Stepped]:
        """Make one step. Every end is a rule of the mission and terminates, but for a site that is down,
        which is nobody's choice: truncated."""
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
            info["episode_metrics"] = self._tell()
        down = self.outcome == "site_down"
        return self._observe(), sum(terms.values()), ended and not down, down, info

    def find_link(self, action: int) -> SeenLink | None:
        """The link that an action follows, if there is one."""
        if action == NEXT:
            return self.memory.here.next
        slot = action - FIRST_LINK
        return self.memory.slots[slot] if 0 <= slot < len(self.memory.slots) else None

    def read_mask(self) -> Array:
        """int8 [actions]: 1 where an action does something now."""
        mask = np.zeros(self.num_actions, np.int8)
        mask[STOP] = 1
        mask[BACK] = len(self.memory.trail) > 1
        mask[NEXT] = self.memory.here.next is not None
        mask[FIRST_LINK : FIRST_LINK + len(self.memory.slots)] = 1
        return mask

    def describe_target(self) -> tuple[str, str]:
        """The site, and how it answers."""
        return origin_of(self.host.base_url), self.host.describe_health()

    def get_state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as plain values."""
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
        """Continue exactly from the result of `get_state`; the site may be served at another address now."""
        state = _move(state, state["base_url"], self.host.base_url)
        home, target, wanted = state["task"]
        self.task = Task(home, target, frozenset(wanted))
        self.memory = Memory.restore(state["memory"], self.rules.max_links)
        self.counts = Counts(*state["counts"])
        self.failures, self.terms = Counter(state["failures"]), dict(state["terms"])
        self.outcome = state["outcome"]
        self._is_down, self._running = state["flags"]

    def _follow(self, link: SeenLink) -> Generator[Wish, Answer | None, None]:
        """Go to a link's page: from memory if it was seen, else by a request."""
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
        terms = {
            "found": 0.0,
            "closer": weights.closer * closer,
            "request": weights.request * num_requests,
            "step": weights.step,
            "gave_up": 0.0,
            "budget": 0.0,
        }
        if self.outcome in terms:
            terms[self.outcome] = getattr(weights, self.outcome)
        return {name: value + 0.0 for name, value in terms.items()}

    def _observe(self) -> Array:
        rules, used = self.rules, self.counts
        requests_left = max(0.0, 1 - used.requests / rules.budget)
        steps_left = max(0.0, 1 - used.steps / (rules.budget * rules.steps_per_request))
        return observe(self.memory, rules.max_links, requests_left, steps_left)

    def _tell(self) -> dict[str, float]:
        graph = self.memory.graph
        told = {
            "requests": self.counts.requests,
            "retries": self.counts.retries,
            "pages": graph.num_visited,
            "seen": len(graph),
            "depth": graph.distances[self.memory.node],
        }
        told |= {f"failed_{name}": self.failures[name] for name in FAILURES}
        return {name: float(value) for name, value in told.items()}


def _move(value: Any, old: str, new: str) -> Any:
    """Plain values with URLs of the old site replaced by those of the new one."""
    if isinstance(value, dict):
        return {key: _move(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_move(item, old, new) for item in value]
    return new + value.removeprefix(old) if isinstance(value, str) and value.startswith(old) else value
