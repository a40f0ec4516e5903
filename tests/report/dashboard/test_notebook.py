"""`mg.watch()`: a dashboard that may stand in a cell, and that ends with its notebook."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import mission_gym as mg
from mission_gym.errors import UsageError
from mission_gym.report.dashboard.guard import keep_token
from timeouts import is_alive, wait_until


def test_a_cell_shows_it_and_close_ends_it(tmp_path: Path) -> None:
    board = mg.watch(tmp_path)
    parts = urlsplit(board.address)
    try:
        assert f'src="http://localhost:{parts.port}/?token=' in board._repr_html_()
        assert board.address in repr(board)
        assert keep_token() not in board.address  # a saved notebook must not open other dashboards
        connection = http.client.HTTPConnection("localhost", parts.port or 0)
        connection.request("GET", f"/?{parts.query}")
        response = connection.getresponse()
        assert response.status == 303
        assert "frame-ancestors http://localhost:*" in (response.getheader("content-security-policy") or "")
        assert response.getheader("x-frame-options") is None
        connection.close()
    finally:
        board.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", parts.port or 0))


def test_it_does_not_outlive_a_notebook_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import mission_gym as mg
board = mg.watch({str(tmp_path)!r})
print(board._process.pid, flush=True)
input()
"""
    notebook = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert notebook.stdout is not None
    server = int(notebook.stdout.readline())
    notebook.send_signal(signal.SIGKILL)
    notebook.communicate()
    wait_until(lambda: not is_alive(server))


def test_a_dashboard_that_can_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="port=70000 is not between 0 and 65535"):
        mg.watch(tmp_path, port=70000)
