"""Serves the generated sites on loopback, all in one process: the mission's companion.

HTTP/1.1 with persistent connections, for thousands of small requests per second, each with its own latency,
and for the misbehaviour of real sites. `site.py` makes the pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from mission_gym_missions.explore.site import Reply, Site, SiteRules

_MAX_HEAD = 16_384
_SLOW = 10.0  # times the latency
_PIECE = b"0" * 65_536
_HUGE = 5 << 30  # bytes
_BOMB = 256 << 20


class SiteServer:
    """The state that all connections share. Latencies are in seconds."""

    def __init__(self, rules: SiteRules, latency_s: float = 0.0, jitter_s: float = 0.0) -> None:
        self.loop = asyncio.get_running_loop()
        self._latency_s, self._jitter_s = latency_s, jitter_s
        self._find_site = lru_cache(256)(lambda number: Site(number, rules))

    def answer(self, path: str) -> tuple[Reply, float]:
        """Return the reply to a path, and its delay in seconds."""
        number, _, rest = path.split("?")[0].lstrip("/").partition("/")
        if number.isascii() and number.isdigit():
            reply = self._find_site(int(number)).reply(rest)
        else:
            reply = Reply(b"", 404, "Not Found")
        delay_s = self._latency_s + self._jitter_s * random.random()
        return reply, delay_s * _SLOW if reply.is_slow else delay_s

    async def listen(self, port: int = 0) -> asyncio.Server:
        """Start serving; port 0: any free port."""
        return await self.loop.create_server(
            lambda: Connection(self), "127.0.0.1", port, backlog=4096, reuse_address=True
        )


class Connection(asyncio.Protocol):
    """One client, one request at a time."""

    def __init__(self, server: SiteServer) -> None:
        self._server = server
        self._buffer = b""
        self._is_busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._continue: Callable[[], None] | None = None  # for a body that is sent in pieces

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._continue = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._take()

    def _take(self) -> None:
        if self._is_busy:
            return
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            if len(head) > _MAX_HEAD:
                self._transport.abort()
            return
        self._buffer, self._is_busy = rest, True
        words = head.split(b"\r\n", 1)[0].split()
        if len(words) != 3 or words[0] != b"GET":
            self._transport.write(_make_head("405 Method Not Allowed", 0, "Connection: close"))
            self._transport.close()
            return
        reply, delay_s = self._server.answer(words[1].decode("latin-1"))
        if delay_s:
            self._timer = self._server.loop.call_later(delay_s, self._send, reply)
        else:
            self._send(reply)

    def _send(self, reply: Reply) -> None:
        if reply.fault:
            _MISBEHAVE[reply.fault](self)
            return
        headers = [f"Content-Type: {reply.kind}"] + [f"Location: {reply.location}"] * bool(reply.location)
        head = _make_head(f"{reply.status} {reply.reason}", len(reply.body), *headers)
        self._transport.write(head + reply.body)
        self._is_busy = False
        if self._buffer:
            self._take()

    def reset(self) -> None:
        """Reset the connection without an answer (RST)."""
        linger = struct.pack("ii", 1, 0)
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._transport.abort()

    def trickle(self) -> None:
        """Send a body of one byte per second."""
        self._transport.write(_make_head("200 OK", 100_000, "Content-Type: text/html"))

        def drip() -> None:
            self._transport.write(b" ")
            self._timer = self._server.loop.call_later(1.0, drip)

        drip()

    def flood(self) -> None:
        """Send a body of 5 GB, as fast as the client reads."""
        self._transport.write(_make_head("200 OK", _HUGE, "Content-Type: text/html"))
        self._left = _HUGE
        self._continue = self._pour
        self._pour()

    def _pour(self) -> None:
        if self._continue is not None and self._left > 0:
            self._left -= len(_PIECE)
            self._transport.write(_PIECE)
            self._timer = self._server.loop.call_later(0.0, self._pour) if self._flows else None

    _flows = True

    def pause_writing(self) -> None:
        self._flows = False

    def resume_writing(self) -> None:
        self._flows = True
        if self._continue is not None:
            self._continue()

    def explode(self) -> None:
        """Send a small body that decompresses to 256 MB."""
        body = _make_bomb()
        self._transport.write(_make_head("200 OK", len(body), "Content-Encoding: gzip") + body)
        self._is_busy = False


_MISBEHAVE: dict[str, Callable[[Connection], None]] = {
    "reset": Connection.reset,
    "slow_body": Connection.trickle,
    "huge": Connection.flood,
    "bomb": Connection.explode,
}


def _make_head(status: str, length: int, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {length}"]
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")


@lru_cache(1)
def _make_bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(_PIECE) for _ in range(_BOMB // len(_PIECE))]
    return b"".join([*pieces, packer.flush()])


def serve(
    tell: Callable[[dict[str, Any]], None],
    told: dict[str, Any] | None,
    *,
    num_pages: int,
    faults: float,
    latency_ms: float,
    jitter_ms: float,
) -> None:
    """Serve until the process ends. `tell` reports the address; `told` has an earlier one, if any."""
    rules = SiteRules(num_pages=num_pages, faults=faults)
    port = 0 if told is None else int(told["served_at"].rstrip("/").rpartition(":")[2])

    async def run() -> None:
        server = await SiteServer(rules, latency_ms / 1000, jitter_ms / 1000).listen(port)
        address = server.sockets[0].getsockname()
        tell({"served_at": f"http://127.0.0.1:{address[1]}/"})
        await server.serve_forever()

    _allow_many_connections()
    asyncio.run(run())


def _allow_many_connections() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
