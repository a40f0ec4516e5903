"""The socket and the server: a port that is free, the address to print, and requests until it is stopped."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import uvicorn

from mission_gym.errors import UsageError
from mission_gym.report.dashboard.app import make_app
from mission_gym.report.dashboard.guard import keep_token
from mission_gym.report.dashboard.index import Index
from mission_gym.store.metrics import Metric

PORT = 6446
_NUM_PORTS = 50  # that are tried where one is taken
_NICE = 10  # of the server, which yields to trainings; pages still get a tenth of a core that is busy


def serve(
    runs_dir: Path,
    metrics: Sequence[Metric],
    host: str,
    port: int,
    tell: Callable[[str, str], None],
    *,
    in_notebook: bool = False,
) -> None:
    """Serve a runs folder until a signal. tell: of the address, and of a port that was taken. in_notebook:
    pages of this machine may show it in a frame, and it ends with whoever holds its stdin."""
    with closing(open_socket(host, port)) as listening:
        if hasattr(os, "nice"):
            os.nice(_NICE)
        # What a notebook shows is saved and shared with it, so its token opens that one server alone.
        token = secrets.token_hex(24) if in_notebook else keep_token()
        number = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        note = "" if port in (0, number) else f"port {port} is taken; this is the next free one"
        tell(f"http://{shown}:{number}/?token={token}", note)
        index = Index(runs_dir)
        threading.Thread(target=index.changes, args=(0,), daemon=True).start()  # until the first page asks
        app = make_app(index, metrics, token, host, lambda: server.should_exit, in_notebook=in_notebook)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", ws="none", server_header=False,
            proxy_headers=False, timeout_graceful_shutdown=2,
        )  # fmt: skip
        server = uvicorn.Server(config)
        if in_notebook:
            threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
        server.run(sockets=[listening])


def _end_with_stdin(server: uvicorn.Server) -> None:
    while sys.stdin.buffer.read(1):
        pass
    server.should_exit = True


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at `port`, or at the next free one; 0 takes any. UsageError where none can."""
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
        f"can't listen on {host}, port {port}: {last and last.strerror}; give another address or port"
        " [--host, --port]"
    )
