"""How a page is fetched, without doing any I/O: generators that yield requests and receive responses.

Clients (`client.py`, `aio_env.py`) run the generators, with threads or on an event loop. They only check
addresses and body sizes. Redirects, robots.txt, back-off and all limits are here, once for both forms of the
mission. Every fetch ends within `patience_s` plus the `timeout_s` of one request, whatever the site does.
"""

from __future__ import annotations

import ipaddress
import threading
import time
import zlib
from collections.abc import Generator, Mapping
from typing import ClassVar, NamedTuple

from mission_gym.errors import EnvContractError, TargetSilent, UsageError
from mission_gym_missions.explore.pages import Page, is_same_site, join, origin_of, read_page
from mission_gym_missions.explore.robots import Robots

AGENT = "mission-gym"
HEADERS = {"User-Agent": f"{AGENT}/1", "Accept": "text/html,*/*;q=0.5", "Accept-Encoding": "gzip"}
CHUNK = 65_536  # bytes read at once
UNREACHABLE, TIMEOUT, BROKEN, TOO_LARGE, REFUSED = "unreachable", "timeout", "broken", "too_large", "refused"
FAILURES = ("status", TIMEOUT, BROKEN, TOO_LARGE, REFUSED, "redirects", "off_site", "forbidden")

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_MAX_REDIRECTS = 5
_PAUSE_S, _MAX_PAUSE_S = 0.1, 2.0  # of back-off, which doubles
_FEW = 3  # requests
_MAX_QUEUE_S = 20.0  # that a request may wait for its turn
_REDIRECTS = (301, 302, 303, 307, 308)
_BUSY = (429, 503)


class FetchLimits(NamedTuple):
    """Limits of one request (timeout_s, max_bytes) and of one fetch (patience_s)."""

    timeout_s: float = 5.0
    patience_s: float = 10.0
    max_bytes: int = 1 << 20

    @property
    def silence_s(self) -> float:
        """How long a site may be silent: one slow answer is not enough."""
        return max(self.patience_s, 2 * self.timeout_s)


class Get(NamedTuple):
    url: str


class Pause(NamedTuple):
    seconds: float


IoRequest = Get | Pause


class Response(NamedTuple):
    """The result of a Get. failure: UNREACHABLE, TIMEOUT, BROKEN, TOO_LARGE, REFUSED or empty."""

    status: int = 0
    body: bytes = b""
    content_type: str = ""
    location: str = ""
    retry_after: str = ""
    failure: str = ""
    took_s: float = 0.0
    has_head: bool = False  # the head of an answer arrived, even if the rest failed


class Fetched(NamedTuple):
    """The result of a fetch. is_down: the site did not answer. failure: why there is no page, or empty."""

    page: Page
    num_requests: int = 1
    num_retries: int = 0
    failure: str = ""
    is_down: bool = False


class BodyError(Exception):
    """A refused body; its text is the failure."""


class Body:
    """Collects the chunks of a body, decompressed, up to a limit."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise BodyError(BROKEN)
        self._unpack = None
        if name not in ("", "identity"):
            self._unpack = zlib.decompressobj(15 if name == "deflate" else 47)
        self._max_bytes, self._num_packed = max_bytes, 0
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """BodyError if the body is too large, compressed or not, or cannot be decompressed."""
        self._num_packed += len(chunk)
        if self._unpack is not None:
            try:
                chunk = self._unpack.decompress(chunk, self._max_bytes + 1 - len(self._data))
            except zlib.error as error:
                raise BodyError(BROKEN) from error
        self._data += chunk
        if max(len(self._data), self._num_packed) > self._max_bytes:
            raise BodyError(TOO_LARGE)

    def finish(self) -> bytes:
        """Return the whole body; BodyError if it was cut off."""
        if self._unpack is not None and self._num_packed and not self._unpack.eof:
            raise BodyError(BROKEN)
        return bytes(self._data)


def make_response(status: int, headers: Mapping[str, str], body: Body) -> Response:
    """Return the response of a complete body; BodyError if it was cut off."""
    kind, location, retry = (headers.get(name, "") for name in ("Content-Type", "Location", "Retry-After"))
    return Response(status, body.finish(), kind, location, retry)


def may_connect(address: str, allow_loopback: bool) -> bool:
    """Whether a resolved address is on the public Internet, or on loopback if that is allowed.

    Private, link-local (metadata services) and special addresses are refused, however they are written. Check
    every connection after name resolution, since a name can resolve differently the next time.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        found = inner or found
    if found.is_loopback:
        return allow_loopback
    special = found.is_multicast or found.is_reserved or getattr(found, "is_site_local", False)
    return found.is_global and not special


class Pacer:
    """Spreads the requests of all environments of a process that share it, threads included."""

    _shared: ClassVar[dict[tuple[str, float], Pacer]] = {}
    _lock = threading.Lock()

    def __init__(self, requests_per_s: float) -> None:
        self._gap_s = 1.0 / requests_per_s if requests_per_s else 0.0
        self._next = 0.0

    @classmethod
    def of(cls, origin: str, requests_per_s: float) -> Pacer:
        """Return the shared pacer of a site."""
        with cls._lock:
            return cls._shared.setdefault((origin, requests_per_s), cls(requests_per_s))

    def slow_down(self, gap_s: float) -> None:
        """Leave at least this much time between two requests."""
        self._gap_s = max(self._gap_s, gap_s)

    def claim(self) -> float:
        """Return the seconds to wait before the next request; UsageError if that is too long."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            if start - now > _MAX_QUEUE_S:
                raise UsageError(
                    f"requests to the site would wait over {_MAX_QUEUE_S:.0f} s, at one every "
                    f"{self._gap_s:g} s; use fewer environments [--n-envs], or allow more [requests_per_s]"
                )
            self._next = start + self._gap_s
            return start - now


class Health:
    """Whether a site answers any of the environments of a process."""

    _shared: ClassVar[dict[str, Health]] = {}

    def __init__(self) -> None:
        self.has_answered = False
        self._silent_since: float | None = None
        self._num_silent = 0  # requests since then

    @classmethod
    def of(cls, origin: str) -> Health:
        """Return the shared health of a site."""
        return cls._shared.setdefault(origin, cls())

    def record(self, response: Response, origin: str, limits: FetchLimits) -> None:
        """Note a response; TargetSilent if no request was answered for `silence_s`, at first for half of
        it."""
        if response.status or response.has_head:
            self.has_answered, self._silent_since, self._num_silent = True, None, 0
            return
        now = time.monotonic()
        begun = now - response.took_s
        since = self._silent_since = begun if self._silent_since is None else self._silent_since
        self._num_silent += 1
        # A site that never answered is not worth as much patience, after a few requests.
        is_known = self.has_answered or self._num_silent < _FEW
        if now - since >= limits.silence_s * (1.0 if is_known else 0.5):
            raise TargetSilent(
                f"the target {origin} does not answer: {self._num_silent} requests in {now - since:.0f} s "
                f"failed, the last one as {response.failure}; start it, or correct its address [base_url]"
            )


class Host:
    """One site: its robots.txt, once known, its rate limit and its response times."""

    def __init__(self, base_url: str, limits: FetchLimits, pacer: Pacer | None = None) -> None:
        self.base_url, self.limits = base_url, limits
        self.health = Health.of(origin_of(base_url))
        self._robots: Robots | None = None
        self._pacer = pacer
        self._num_answers, self._num_silent, self._answered_s = 0, 0, 0.0

    def record(self, response: Response) -> None:
        """Count a request and its response time; TargetSilent if the site does not answer any more."""
        if response.status:
            self._num_answers += 1
            self._answered_s += response.took_s
        else:
            self._num_silent += 1
        self.health.record(response, origin_of(self.base_url), self.limits)

    def describe_health(self) -> str:
        """Describe how the site has answered so far."""
        if not self._num_answers:
            return "has not answered yet"
        silent = f", {self._num_silent} more got no answer" if self._num_silent else ""
        latency_ms = 1000 * self._answered_s / self._num_answers
        return f"answers after {latency_ms:.0f} ms, the mean of {self._num_answers} requests{silent}"

    def allows(self, url: str) -> bool:
        """Whether robots.txt allows an address."""
        return self._robots is None or self._robots.allows(url)

    def read_robots(self) -> Generator[IoRequest, Response | None, bool]:
        """Request robots.txt, once; False if the site does not answer.

        Without the file everything is allowed; if it is refused or broken, nothing is (RFC 9309).
        """
        if self._robots is not None:
            return True
        url = f"{origin_of(self.base_url)}/robots.txt"
        response = yield from self.request(url)
        for _ in range(_MAX_REDIRECTS):
            url = join(url, response.location)
            if response.status not in _REDIRECTS or not url or not is_same_site(url, self.base_url):
                break
            response = yield from self.request(url)
        if response.failure in (UNREACHABLE, TIMEOUT):
            return False
        if response.failure == REFUSED:
            raise EnvContractError(
                f"{self.base_url} is not on the public Internet, so it is not connected to; for a site on "
                "this machine use allow_loopback=true [base_url]"
            )
        text = ""
        if response.failure or response.status >= 500:
            text = "User-agent: *\nDisallow: /"
        elif response.status == 200:
            text = response.body.decode("utf-8", "replace")
        self._robots = Robots(text, AGENT)
        if self._pacer is not None:
            self._pacer.slow_down(self._robots.delay_s)
        return True

    def request(self, url: str) -> Generator[IoRequest, Response | None, Response]:
        """Make one request, with retries, and return its response as it is."""
        return (yield from _Attempts(self, self._pacer).request(url))

    def fetch(self, url: str) -> Generator[IoRequest, Response | None, Fetched]:
        """Fetch the page at an address of this site, through redirects inside the site."""
        attempts = _Attempts(self, self._pacer)

        def fail(failure: str) -> Fetched:
            return Fetched(Page(url), max(1, attempts.num_requests), attempts.num_retries, failure)

        if not self.allows(url):
            return fail("forbidden")
        for _ in range(_MAX_REDIRECTS + 1):
            response = yield from attempts.request(url)
            if response.failure == UNREACHABLE:
                return fail(UNREACHABLE)._replace(is_down=True)
            if response.failure:
                return fail(response.failure)
            if response.status not in _REDIRECTS:
                if not 200 <= response.status < 300:
                    return fail("status")
                page = read_page(url, response.body, response.content_type)
                links = tuple(link for link in page.links if self.allows(link.url))
                return Fetched(page._replace(links=links), attempts.num_requests, attempts.num_retries)
            target = join(url, response.location)
            if not target:
                return fail(BROKEN)
            if not is_same_site(target, self.base_url):
                return fail("off_site")
            if not self.allows(target):
                return fail("forbidden")
            url = target
        return fail("redirects")


class _Attempts:
    """The requests of one fetch, which share its patience."""

    def __init__(self, host: Host, pacer: Pacer | None) -> None:
        self._host, self._pacer = host, pacer
        self._left_s = host.limits.patience_s
        self.num_requests = self.num_retries = 0

    def request(self, url: str) -> Generator[IoRequest, Response | None, Response]:
        """Make one request. Retry after a pause if the site is unreachable or busy, at once if the connection
        broke. Retries do not count as requests."""
        pause_s, may_break = _PAUSE_S, True
        self.num_requests += 1
        while True:
            if self._pacer is not None and (wait_s := self._pacer.claim()):
                yield Pause(wait_s)
            response = yield Get(url)
            assert response is not None
            self._host.record(response)
            self._left_s -= response.took_s
            if response.failure == BROKEN and may_break and self._left_s > 0:
                may_break = False
            elif response.failure == UNREACHABLE or response.status in _BUSY:
                wait_s = max(pause_s, _read_seconds(response.retry_after))
                if wait_s > self._left_s:
                    return response
                yield Pause(wait_s)
                self._left_s -= wait_s
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            elif self._left_s <= 0 and not response.failure and response.status in _REDIRECTS:
                return response._replace(failure=TIMEOUT)
            else:
                return response
            self.num_retries += 1


def _read_seconds(retry_after: str) -> float:
    """Read a Retry-After header that gives seconds; for a date, back-off alone waits."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
