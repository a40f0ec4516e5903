"""Servers that end with their test, and a run with some rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dashboard_runs import HandRun, Server


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    with ExitStack() as stack:

        def start(runs_dir: Path, port: int = 0) -> Server:
            server = Server(runs_dir, port)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def hand_run(tmp_path: Path) -> HandRun:
    run = HandRun(tmp_path)
    run.add(10, 20, 30)
    run.evaluate(20)
    return run
