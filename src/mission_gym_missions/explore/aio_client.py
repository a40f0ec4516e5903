"""Fulfils wishes on an event loop, beside hundreds of others: for the coroutine form of the mission."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Generator
from typing import Any, TypeVar

from mission_gym.errors import UsageError
from mission_gym_missions.explore import wishes
from mission_gym_missions.explore.addresses import may_connect
from mission_gym_missions.explore.wishes import Answer, Body, BodyError, Get, Limits, Wish, read_answer

try:
    import aiohttp
    from yarl import URL
except ImportError as error:
    raise UsageError(
        f"the coroutine form of mission_gym/Explore-v0 needs a package that is not installed ({error}); "
        'run: pip install "mission-gym[web]"'
    ) from error

Result = TypeVar("Result")


class AioClient:
    """One session with a connection that stays open; it belongs to the loop on which it is first used."""

    def __init__(self, limits: Limits, allow_loopback: bool) -> None:
        self._limits, self._allow_loopback = limits, allow_loopback
        self._session: aiohttp.ClientSession | None = None
        self._was_refused = False

    async def fulfil(self, asking: Generator[Wish, Answer | None, Result]) -> Result:
        """Run a generator of wishes to its end."""
        answer: Answer | None = None
        try:
            while True:
                wish = asking.send(answer)
                if isinstance(wish, Get):
                    answer = await self.get(wish.url)
                else:
                    await asyncio.sleep(wish.seconds)
                    answer = None
        except StopIteration as done:
            result: Result = done.value
            return result

    async def get(self, url: str) -> Answer:
        """Ask for an address; what goes wrong is told, never raised."""
        begun = time.monotonic()
        self._was_refused = False
        try:
            answer = await self._get(url)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError):
            answer = Answer(failure=wishes.REFUSED if self._was_refused else wishes.UNREACHABLE)
        except TimeoutError:
            answer = Answer(failure=wishes.TIMEOUT)
        except BodyError as error:
            answer = Answer(failure=str(error))
        except (aiohttp.ClientError, OSError, ValueError):
            answer = Answer(failure=wishes.BROKEN)
        return answer._replace(took_s=time.monotonic() - begun)

    async def _get(self, url: str) -> Answer:
        if self._session is None:
            self._session = self._open()
        async with self._session.get(URL(url, encoded=True), allow_redirects=False) as response:
            body = Body(response.headers.get("Content-Encoding", ""), self._limits.max_bytes)
            async for chunk in response.content.iter_chunked(wishes.CHUNK):
                body.add(chunk)
            return read_answer(response.status, response.headers, body)

    def _open(self) -> aiohttp.ClientSession:
        limits = aiohttp.ClientTimeout(total=self._limits.timeout_s, sock_connect=self._limits.timeout_s)
        connector = aiohttp.TCPConnector(
            limit=1,
            resolver=aiohttp.ThreadedResolver(),  # the system's, as the plain form has it
            use_dns_cache=False,
            keepalive_timeout=300,
            socket_factory=self._make_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=limits,
            headers=wishes.HEADERS,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=wishes.CHUNK,
            max_field_size=wishes.CHUNK,
        )

    def _make_socket(self, info: Any) -> socket.socket:
        """A socket for one resolved address: every connection passes here."""
        family, kind, protocol, _, address = info
        if not may_connect(str(address[0]), self._allow_loopback):
            self._was_refused = True
            raise PermissionError("this address may not be connected to")
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Let the connection go."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
