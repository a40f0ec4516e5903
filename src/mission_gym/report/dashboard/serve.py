"""The server: a free port, the address to print, and requests until a signal."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mission_gym.errors import UsageError
from mission_gym.report.dashboard.app import make_app
from mission_gym.report.dashboard.guard import keep_token
from mission_gym.report.dashboard.index import Index
from mission_gym.store.metrics import Metric

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PORT = 6446
_NUM_PORTS = 50  # tried if the first is taken
_HEAD_S = 10.0  # for a whole request
_MOST_IDLE = 200  # connections without a request
_NUM_FILES = 4096  # open files, connections included
_NICE = 10  # trainings come first; on a busy core the server still gets a tenth


class _BoundedProtocol(H11Protocol):
    """Closes connections that do not send a whole request: after a time, or the oldest above a number. A
    client without a token could otherwise hold all descriptors of the server."""

    _idle: ClassVar[dict[_BoundedProtocol, None]] = {}  # the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle[self] = None
        self.loop.call_later(_HEAD_S, self._check)
        for other in [each for each in self._idle if each._is_idle()][:-_MOST_IDLE]:
            other._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _check(self) -> None:
        if self._is_idle():
            self._close()
        elif self in self._idle:
            self.loop.call_later(_HEAD_S, self._check)

    def _close(self) -> None:
        self._idle.pop(self, None)
        self.transport.close()


def serve(
    runs_dir: Path,
    metrics: Sequence[Metric],
    host: str,
    port: int,
    report: Callable[[str, str], None],
    *,
    in_notebook: bool = False,
) -> None:
    """Serve a runs folder until a signal. report: called with the address and a note about a taken port.
    in_notebook: pages of this machine may show it in a frame, and it ends when its stdin is closed."""
    with closing(open_socket(host, port)) as listening:
        if hasattr(os, "nice"):
            os.nice(_NICE)
        raise_file_limit()
        # A notebook is saved and shared with its output, so its token is valid only for this server.
        token = secrets.token_hex(24) if in_notebook else keep_token()
        number = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        note = "" if port in (0, number) else f"port {port} is taken; this is the next free one"
        report(f"http://{shown}:{number}/?token={token}", note)
        index = Index(runs_dir)
        threading.Thread(target=index.changes, args=(0,), daemon=True).start()  # before the first request
        app = make_app(index, metrics, token, host, lambda: server.should_exit, in_notebook=in_notebook)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", ws="none", server_header=False,
            proxy_headers=False, timeout_graceful_shutdown=2, http=_BoundedProtocol,
        )  # fmt: skip
        server = uvicorn.Server(config)
        if in_notebook:
            threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
        server.run(sockets=[listening])


def raise_file_limit() -> None:
    """Allow this process to open more files, up to its hard limit."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _NUM_FILES if hard == resource.RLIM_INFINITY else min(_NUM_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < most:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _end_with_stdin(server: uvicorn.Server) -> None:
    while sys.stdin.buffer.read(1):
        pass
    server.should_exit = True


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on `port` or the next free one; 0 takes any. UsageError if none is available."""
    if not 0 <= port < 1 << 16:
        raise UsageError(f"port={port} is not between 0 and 65535 [--port]")
    last: OSError | None = None
    for candidate in range(port, min(port + _NUM_PORTS, 1 << 16)) if port else (0,):
        try:
            family = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            last = error
            if isinstance(error, socket.gaierror):
                break
    raise UsageError(
        f"can't listen on {host}, port {port}: {last and last.strerror}; use another address or port"
        " [--host, --port]"
    )
