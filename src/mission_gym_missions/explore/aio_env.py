"""The explore mission as coroutines: hundreds of environments wait for the site on one event loop.

Any object with `observation_space`, `action_space` and these coroutines is such an environment. Results equal
those of the plain form.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Generator
from typing import Any, ClassVar, TypeVar

from gymnasium.utils import seeding

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym_missions.env import Metadata
from mission_gym_missions.explore import fetch
from mission_gym_missions.explore.env import METADATA, ExploreForm, draw_number, read_action
from mission_gym_missions.explore.fetch import Body, BodyError, FetchLimits, Get, IoRequest, Response

try:
    import aiohttp
    from yarl import URL
except ImportError as error:
    raise UsageError(
        f"the coroutine form of mission_gym/Explore-v0 needs a package that is not installed ({error}); "
        'run: pip install "mission-gym[web]"'
    ) from error

Result = TypeVar("Result")


class AsyncExploreEnv(ExploreForm):
    """Find a page of a web site by following links. Keyword arguments: the fields of `Settings`."""

    metadata: ClassVar[Metadata] = METADATA | {"render_modes": []}

    def __init__(self, **settings: Any) -> None:
        read = self._open(settings)
        self._client = AsyncHttpClient(read.limits, read.may_use_loopback)
        self._np_random: Any = None

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode; its site and target are a function of the seed."""
        if seed is not None or self._np_random is None:
            self._np_random, _ = seeding.np_random(seed)
        return await self._client.run(self.explorer.reset(draw_number(self._np_random)))

    async def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Stop, go back, or follow a link; following a missing link does nothing."""
        return await self._client.run(self.explorer.step(read_action(action)))

    async def close(self) -> None:
        await self._client.close()
        self._companion = None


class AsyncHttpClient:
    """One session with a connection that stays open; it belongs to the event loop of its first use."""

    def __init__(self, limits: FetchLimits, allow_loopback: bool) -> None:
        self._limits, self._allow_loopback = limits, allow_loopback
        self._session: aiohttp.ClientSession | None = None
        self._was_refused = self._has_head = False

    async def run(self, requests: Generator[IoRequest, Response | None, Result]) -> Result:
        """Perform the requests of a generator until it returns."""
        response: Response | None = None
        try:
            while True:
                request = requests.send(response)
                if isinstance(request, Get):
                    response = await self.get(request.url)
                else:
                    await asyncio.sleep(request.seconds)
                    response = None
        except StopIteration as done:
            result: Result = done.value
            return result

    async def get(self, url: str) -> Response:
        """Request an address. Failures are part of the response and never raised."""
        begun = time.monotonic()
        self._was_refused = self._has_head = False
        try:
            response = await self._get(url)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError):
            response = Response(failure=fetch.REFUSED if self._was_refused else fetch.UNREACHABLE)
        except TimeoutError:
            response = Response(failure=fetch.TIMEOUT)
        except BodyError as error:
            response = Response(failure=str(error))
        except (aiohttp.ClientError, OSError, ValueError):
            response = Response(failure=fetch.BROKEN)
        return response._replace(took_s=time.monotonic() - begun, has_head=self._has_head)

    async def _get(self, url: str) -> Response:
        if self._session is None:
            self._session = self._open()
        async with self._session.get(URL(url, encoded=True), allow_redirects=False) as response:
            self._has_head = True
            body = Body(response.headers.get("Content-Encoding", ""), self._limits.max_bytes)
            async for chunk in response.content.iter_chunked(fetch.CHUNK):
                body.add(chunk)
            return fetch.make_response(response.status, response.headers, body)

    def _open(self) -> aiohttp.ClientSession:
        limits = aiohttp.ClientTimeout(total=self._limits.timeout_s, sock_connect=self._limits.timeout_s)
        connector = aiohttp.TCPConnector(
            limit=1,
            resolver=aiohttp.ThreadedResolver(),  # the system's resolver, as in the plain form
            use_dns_cache=False,
            keepalive_timeout=300,
            socket_factory=self._make_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=limits,
            headers=fetch.HEADERS,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=fetch.CHUNK,
            max_field_size=fetch.CHUNK,
        )

    def _make_socket(self, info: Any) -> socket.socket:
        """Make a socket for one resolved address; every connection passes here."""
        family, kind, protocol, _, address = info
        if not fetch.may_connect(str(address[0]), self._allow_loopback):
            self._was_refused = True
            raise PermissionError("this address is refused")
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
