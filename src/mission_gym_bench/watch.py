"""`bench watch`: the dashboard under load. Response times of pages with 2,000 runs, one of them long; the CPU
time of the server with no and with five open tabs; the cost of five tabs for a training.

The server is a separate process, like a user's. Tabs make the initial requests of a page, follow its event
stream, and request its panels when they are outdated; a browser's drawing is not included. Rates with and
without tabs alternate inside one run, and each is compared with its neighbours, since the speed of a machine
drifts by more than the effect.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import psutil

from mission_gym.report.dashboard.guard import make_secret
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog
from mission_gym_bench.runner import Row, make_row

_TIMEOUT_S = 120.0
_NUM_TABS = 5
_BEAT_S = 60.0  # most time between two heartbeats of a training, on a busy machine


@dataclass(frozen=True, slots=True)
class WatchGrid:
    """The amount of data, and how long each part is measured."""

    num_runs: int = 2000
    num_rows: int = 100_000  # of the long run
    num_tags: int = 50
    idle_s: float = 20.0
    window_s: float = 6.0  # of training with or without tabs
    num_windows: int = 15


def measure_watch(grid: WatchGrid) -> list[Row]:
    """A row per promise; `ours` is seconds or a share."""
    with TemporaryDirectory(prefix="mission-gym-watch-") as folder:
        runs_dir = Path(folder)
        print(f"writing {grid.num_runs:,} runs, one with {grid.num_rows:,} rows", file=sys.stderr)
        long = _write_runs(runs_dir, grid)
        with _serve(runs_dir) as server:
            first = server.time("/", "/api/runs")
            again = server.time("/", "/api/runs")
            chart = server.time(f"/run/{long}", "/api/metrics", f"/api/run/{long}")
            with server.tabs(["/events"] * _NUM_TABS):
                time.sleep(grid.idle_s / 2)  # until every sparkline is drawn
                five = server.measure_share(grid.idle_s)
            idle = server.measure_share(grid.idle_s)
            losses, training = _measure_training(runs_dir, server, grid)
    return [
        _row(f"the runs page of {grid.num_runs:,} runs, first request", first[0], "s", 1.0, first[1]),
        _row("the same again", again[0], "s", 1.0, again[1]),
        _row(f"the charts of {grid.num_rows:,} rows of {grid.num_tags} tags", chart[0], "s", 2.0, chart[1]),
        _row("the server without tabs", idle, "share of a core", 0.05),
        _row(f"the server with {_NUM_TABS} tabs of the runs page", five, "share of a core", None),
        _row(f"the server with {_NUM_TABS} tabs during a training", training, "share of a core", None),
        _row(f"the loss of a training with {_NUM_TABS} tabs", losses[1], "share of its rate", 0.02)
        | {"quartiles": [losses[0], losses[2]]},
    ]


class _Server:
    """A running dashboard."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        parts = urlsplit(address)
        self._process = psutil.Process(process.pid)
        self._host, self._port = parts.hostname or "", parts.port or 0
        cookie = f"mission-gym-{self._port}"
        self._headers = {"Cookie": f"{cookie}={make_secret(parts.query.removeprefix('token='), cookie)}"}

    def time(self, *paths: str) -> tuple[float, float]:
        """Return the seconds until all of these are answered, one after another, and the server's CPU time,
        which is more reliable if other processes use the cores."""
        start, work = time.perf_counter(), self.cpu_s()
        for path in paths:
            self._get(path)
        return time.perf_counter() - start, self.cpu_s() - work

    def measure_share(self, seconds: float) -> float:
        """Return the CPU time of the server over the wall time."""
        before = self.cpu_s()
        time.sleep(seconds)
        return (self.cpu_s() - before) / seconds

    def cpu_s(self) -> float:
        """Return the CPU time of the server so far."""
        return float(sum(self._process.cpu_times()[:2]))

    @contextmanager
    def tabs(self, paths: list[str]) -> Iterator[None]:
        """Read event streams while the block runs."""
        with ExitStack() as stack:
            for path in paths:
                connection = self._request(self._load_page(path))
                reader = threading.Thread(target=self._read_tab, args=(connection, path), daemon=True)
                reader.start()
                stack.callback(_close, connection)
            yield

    def _read_tab(self, connection: http.client.HTTPConnection, path: str) -> None:
        """Read a stream, and request the panels when it reports them outdated, like a page."""
        panels = path.partition("?")[0].replace("/events/", "/api/run/") + "/panels"
        with suppress(
            OSError, ValueError, http.client.HTTPException, AttributeError
        ):  # the connection was closed
            response = connection.getresponse()
            while line := response.readline():
                if line == b"event: panels\n":
                    self.time(panels)

    def _load_page(self, path: str) -> str:
        """Make the initial requests of a page; return the address of the stream that it then follows."""
        _, _, run = path.partition("/events/")
        if not run:
            self.time("/")
            return f"{path}?since={json.loads(self._get('/api/runs'))['version']}"
        self.time(f"/run/{run}", "/api/metrics")
        return f"{path}?offset={json.loads(self._get(f'/api/run/{run}'))['end']}"

    def _get(self, path: str) -> bytes:
        connection = self._request(path)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        assert response.status == 200, f"{path}: {response.status}"
        return answer

    def _request(self, path: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        connection.request("GET", path, headers=self._headers)
        return connection


def _close(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(2)
    connection.close()


@contextmanager
def _serve(runs_dir: Path) -> Iterator[_Server]:
    command = [sys.executable, "-m", "mission_gym", "watch", "--port", "0", "--runs-dir", str(runs_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield _Server(process, process.stdout.readline().strip())
        finally:
            process.terminate()


def _measure_training(runs_dir: Path, server: _Server, grid: WatchGrid) -> tuple[list[float], float]:
    """Return the quartiles of a training's loss with five tabs, and the server's share of a core then, from
    alternating windows of one run."""
    command = [sys.executable, "-m", "mission_gym", "train", "CartPole-v1", "--runs-dir", str(runs_dir)]
    flags = ["--timesteps", "1000M", "--eval-freq", "0", "--run-name", "trained", "--no-tune"]
    plain, watched, shares = [], [], []
    with subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL) as process:
        try:
            run = _wait_for_steps(runs_dir, process)
            pages = [f"/events/{run.name}"] * (_NUM_TABS - 1) + ["/events"]
            plain.append(_measure_rate(run, grid.window_s))
            for _ in range(grid.num_windows):
                with server.tabs(pages):
                    before = server.cpu_s()
                    watched.append(_measure_rate(run, grid.window_s))
                    shares.append((server.cpu_s() - before) / grid.window_s)
                plain.append(_measure_rate(run, grid.window_s))
        finally:
            process.terminate()
    around = [(before + after) / 2 for before, after in pairwise(plain)]
    losses = [1.0 - rate / other for rate, other in zip(watched, around, strict=True)]
    alone, with_tabs = statistics.median(plain), statistics.median(watched)
    print(f"training at {alone:,.0f} steps/s, with {_NUM_TABS} tabs at {with_tabs:,.0f}", file=sys.stderr)
    return statistics.quantiles(losses, n=4, method="inclusive"), statistics.median(shares)


def _wait_for_steps(runs_dir: Path, process: subprocess.Popen[bytes]) -> RunDir:
    while process.poll() is None:
        for path in runs_dir.glob("trained-*"):
            if (RunDir(path).read_status().get("step") or 0) > 0:
                return RunDir(path)
        time.sleep(0.2)
    raise RuntimeError("the training ended before its first step")


def _measure_rate(run: RunDir, seconds: float) -> float:
    def read() -> tuple[float, int]:
        status = run.read_status()
        return status["heartbeat"], status["step"]

    before = after = read()
    time.sleep(seconds)
    end = time.monotonic() + _BEAT_S
    while after[0] == before[0] and time.monotonic() < end:
        time.sleep(0.01)
        after = read()
    return (after[1] - before[1]) / (after[0] - before[0])


def _write_runs(runs_dir: Path, grid: WatchGrid) -> str:
    """Write finished runs, each with some rows; return the name of the long one."""
    tags = {f"train/tag_{number}": 0.123456789 * number for number in range(grid.num_tags)}
    status = {"state": "done", "step": 30, "total": 30, "fps": 10.0, "return_mean": 1.0, "pid": 1}
    plan = {"event": "plan", "main_outcome": "won", "time/plan": {"facts": [], "notes": []}}
    rows = [
        json.dumps({"event": "progress", "step": step, "rollout/ep_rew_mean": step / 3} | tags)
        for step in range(30)
    ]
    text = "\n".join([json.dumps(plan), *rows]) + "\n"
    for number in range(grid.num_runs):
        folder = runs_dir / f"run-{number:05}"
        folder.mkdir()
        (folder / "status.json").write_text(json.dumps(status | {"created": float(number)}))
        (folder / "metrics.jsonl").write_text(text)
    long = RunDir(runs_dir / "run-00000")
    log = MetricsLog(long.metrics_jsonl)
    for step in range(30, grid.num_rows):
        log.append(
            {"event": "progress", "step": step, "rollout/ep_rew_mean": step / 3, "time/time_elapsed": step}
            | tags
        )
    log.close()
    return long.name


def _row(case: str, value: float, unit: str, limit: float | None, cpu_s: float | None = None) -> Row:
    holds = None if limit is None else value <= limit
    return make_row(f"watch: {case}", value, unit, promised=limit, server_cpu_s=cpu_s, holds=holds)
