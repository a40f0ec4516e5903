"""How a page is asked for, without any network: generators that yield wishes and are sent what came of them.

Whoever fulfils them, with threads or on an event loop, decides nothing: redirects, robots.txt, back-off and
all limits are here, once for both forms of the mission. Every fetch ends within `patience_s` and one
request's `timeout_s`, whatever the site does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import ClassVar, NamedTuple

from mission_gym.errors import EnvContractError, UsageError
from mission_gym_missions.explore.pages import Page, is_same_site, join, origin_of, read_page
from mission_gym_missions.explore.robots import Robots
from mission_gym_missions.explore.wishes import (
    AGENT,
    BROKEN,
    REFUSED,
    TIMEOUT,
    TOO_LARGE,
    UNREACHABLE,
    Answer,
    Get,
    Limits,
    Pause,
    Wish,
)

_MAX_REDIRECTS = 5
_PAUSE_S, _MAX_PAUSE_S = 0.1, 4.0  # of back-off: it doubles
_MAX_QUEUE_S = 20.0  # of requests that keep their distance
_REDIRECTS = (301, 302, 303, 307, 308)
_BUSY = (429, 503)
FAILURES = ("status", TIMEOUT, BROKEN, TOO_LARGE, REFUSED, "redirects", "off_site", "forbidden")


class Fetched(NamedTuple):
    """What came of a fetch. is_down: nobody answered at all; else failure names why there is no page."""

    page: Page
    num_requests: int = 1
    num_retries: int = 0
    failure: str = ""
    is_down: bool = False


Fetching = Generator[Wish, Answer | None, Fetched]


class Pacer:
    """Spreads the requests of all environments of a process that share it. Threads may share it too."""

    _shared: ClassVar[dict[tuple[str, float], Pacer]] = {}
    _lock = threading.Lock()

    def __init__(self, requests_per_s: float) -> None:
        self._gap_s = 1.0 / requests_per_s if requests_per_s else 0.0
        self._next = 0.0

    @classmethod
    def of(cls, origin: str, requests_per_s: float) -> Pacer:
        """The one for a site."""
        with cls._lock:
            return cls._shared.setdefault((origin, requests_per_s), cls(requests_per_s))

    def slow_down(self, gap_s: float) -> None:
        """Leave at least so much between two requests."""
        self._gap_s = max(self._gap_s, gap_s)

    def claim(self) -> float:
        """Seconds to wait before the next request may be made; UsageError if that is too long."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            if start - now > _MAX_QUEUE_S:
                raise UsageError(
                    f"requests to the site would wait for over {_MAX_QUEUE_S:.0f} s, at one every "
                    f"{self._gap_s:g} s; use fewer environments [--n-envs], or allow more [requests_per_s]"
                )
            self._next = start + self._gap_s
            return start - now


class Host:
    """One site: what it asks of robots, once known; and how fast it may be asked."""

    def __init__(self, base_url: str, limits: Limits, pacer: Pacer | None = None) -> None:
        self.base_url, self.limits = base_url, limits
        self._robots: Robots | None = None
        self._pacer = pacer
        self._num_answers, self._num_silent, self._answered_s = 0, 0, 0.0

    def note(self, answer: Answer) -> None:
        """Count a request, and how long its answer took."""
        if answer.status:
            self._num_answers += 1
            self._answered_s += answer.took_s
        else:
            self._num_silent += 1

    def describe_health(self) -> str:
        """How the site has answered so far."""
        if not self._num_answers:
            return f"does not answer ({self._num_silent} requests): episodes end with site_down until it does"
        silent = f", {self._num_silent} more had none" if self._num_silent else ""
        latency_ms = 1000 * self._answered_s / self._num_answers
        return f"answers after {latency_ms:.0f} ms, the mean of {self._num_answers} requests{silent}"

    def allows(self, url: str) -> bool:
        """Whether robots.txt lets us ask for an address."""
        return self._robots is None or self._robots.allows(url)

    def read_robots(self) -> Generator[Wish, Answer | None, bool]:
        """Ask for robots.txt, once; False if nobody answers. Without one everything is allowed; where it is
        refused or broken, nothing is (RFC 9309)."""
        if self._robots is not None:
            return True
        url = f"{origin_of(self.base_url)}/robots.txt"
        answer = yield from self.ask(url)
        for _ in range(_MAX_REDIRECTS):
            url = join(url, answer.location)
            if answer.status not in _REDIRECTS or not url or not is_same_site(url, self.base_url):
                break
            answer = yield from self.ask(url)
        if answer.failure == UNREACHABLE:
            return False
        if answer.failure == REFUSED:
            raise EnvContractError(
                f"{self.base_url} is at an address that may not be connected to: it is not on the public "
                "Internet; for a site on this machine give allow_loopback=true [base_url]"
            )
        text = ""
        if answer.failure or answer.status >= 500:
            text = "User-agent: *\nDisallow: /"
        elif answer.status == 200:
            text = answer.body.decode("utf-8", "replace")
        self._robots = Robots(text, AGENT)
        if self._pacer is not None:
            self._pacer.slow_down(self._robots.delay_s)
        return True

    def ask(self, url: str) -> Generator[Wish, Answer | None, Answer]:
        """One request, which is not judged."""
        return (yield from _Asking(self, self._pacer).ask(url))

    def fetch(self, url: str) -> Fetching:
        """The page at an address of this site, through redirects inside of it."""
        asked = _Asking(self, self._pacer)

        def fail(failure: str) -> Fetched:
            return Fetched(Page(url), max(1, asked.num_requests), asked.num_retries, failure)

        if not self.allows(url):
            return fail("forbidden")
        for _ in range(_MAX_REDIRECTS + 1):
            answer = yield from asked.ask(url)
            if answer.failure == UNREACHABLE:
                return fail(UNREACHABLE)._replace(is_down=True)
            if answer.failure:
                return fail(answer.failure)
            if answer.status not in _REDIRECTS:
                if not 200 <= answer.status < 300:
                    return fail("status")
                page = read_page(url, answer.body, answer.content_type)
                links = tuple(link for link in page.links if self.allows(link.url))
                return Fetched(page._replace(links=links), asked.num_requests, asked.num_retries)
            target = join(url, answer.location)
            if not target:
                return fail(BROKEN)
            if not is_same_site(target, self.base_url):
                return fail("off_site")
            if not self.allows(target):
                return fail("forbidden")
            url = target
        return fail("redirects")


class _Asking:
    """The requests of one fetch, which share its patience."""

    def __init__(self, host: Host, pacer: Pacer | None) -> None:
        self._host, self._pacer = host, pacer
        self._left_s = host.limits.patience_s
        self.num_requests = self.num_retries = 0

    def ask(self, url: str) -> Generator[Wish, Answer | None, Answer]:
        """One request, made again where that may help: after a while if nobody answers or the site is busy,
        at once if the connection broke. Only what was answered in the end counts as a request."""
        pause_s, may_break = _PAUSE_S, True
        self.num_requests += 1
        while True:
            if self._pacer is not None and (wait_s := self._pacer.claim()):
                yield Pause(wait_s)
            answer = yield Get(url)
            assert answer is not None
            self._host.note(answer)
            self._left_s -= answer.took_s
            if answer.failure == BROKEN and may_break and self._left_s > 0:
                may_break = False
            elif answer.failure == UNREACHABLE or answer.status in _BUSY:
                wait_s = max(pause_s, _read_seconds(answer.retry_after))
                if wait_s > self._left_s:
                    return answer
                yield Pause(wait_s)
                self._left_s -= wait_s
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            elif self._left_s <= 0 and not answer.failure and answer.status in _REDIRECTS:
                return answer._replace(failure=TIMEOUT)
            else:
                return answer
            self.num_retries += 1


def _read_seconds(retry_after: str) -> float:
    """Of a Retry-After header that gives seconds; a date is not read, and back-off alone waits."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
