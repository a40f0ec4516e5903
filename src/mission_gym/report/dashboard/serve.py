"""The server: a free port, the address, and requests until a signal. `watch` starts it from Python."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from html import escape
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


class Dashboard:
    """A dashboard in its own process, which ends with this one; a notebook shows it in the cell."""

    def __init__(self, process: subprocess.Popen[str], address: str, height: int) -> None:
        self._process = process
        self.address = address
        self._height = height

    def close(self) -> None:
        """End the dashboard."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __repr__(self) -> str:
        return f"Dashboard({self.address!r})"

    def _repr_html_(self) -> str:
        # The notebook's own host name, so that the browser treats the frame as the same site.
        address = escape(self.address.replace("127.0.0.1", "localhost"))
        return (
            f'<iframe src="{address}" width="100%" height="{self._height}" style="border:0"></iframe>'
            f'<p><a href="{address}" target="_blank">Open the dashboard in a tab</a></p>'
        )


def watch(runs_dir: str | os.PathLike[str] = "runs", *, port: int = 0, height: int = 700) -> Dashboard:
    """Start the dashboard of a runs folder; as the last line of a cell, it is shown there."""
    command = [sys.executable, "-m", "mission_gym", "watch", "--notebook", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--runs-dir", os.fspath(runs_dir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    address = process.stdout.readline().strip()
    if not address:
        raise UsageError(f"the dashboard did not start: {process.stderr.read().strip()}")
    process.stderr.close()
    return Dashboard(process, address, height)
