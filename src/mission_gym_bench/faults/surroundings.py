"""Other users, reused pids, huge files, foreign clusters, busy servers, and containers that lack parts."""

from __future__ import annotations

import http.client
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from mission_gym.report.dashboard.guard import make_secret
from mission_gym_bench.faults.harness import (
    SERIAL,
    WORKERS,
    CommandResult,
    FaultCase,
    Harness,
    SkippedFault,
    must,
)
from mission_gym_bench.faults.trust import edit_values, list_words

_TRAINS = "the training runs to its end"
_LISTED = "one message about this run; other runs are listed, in bounded memory"
_MEMORY_BYTES = 4 << 30
_HUGE_BYTES = 3 << 30
_HUGE = ("config.yaml", "lineage.json", "plan.json", "metrics.jsonl", "monitor.csv", "log.txt", "pins.json")
_HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
_NUM_SOCKETS = 300
_FEW_FILES = 256


def make_surrounding_faults() -> list[FaultCase]:
    """Return all faults of surroundings."""
    table: dict[str, tuple[str, Callable[[Harness], None]]] = {
        "umask 000": ("locks and the state folder are private", _open_umask),
        "a reused pid in locks": ("the other process is not signalled, and the run resumes", _reuse_pid),
        "half requests to the dashboard": ("the owner's request is answered", _send_halves),
        "150 event streams of the dashboard": ("the owner's request is answered", _open_streams),
        "a home that can't be written": (_TRAINS, _deny_home),
        "pid 1": (_TRAINS, partial(_unshare, flags=("-p", "-f", "--mount-proc"), prepare="true")),
        "64 MB of shared memory": (
            _TRAINS,
            partial(_unshare, flags=("-m",), prepare="mount -t tmpfs -o size=64m tmpfs /dev/shm"),
        ),
        "a read-only root": (
            _TRAINS,
            partial(
                _unshare, flags=("-m",), prepare="mount -t tmpfs tmpfs {runs} && mount -o remount,bind,ro /"
            ),
        ),
    }
    table |= {f"a huge {name}": (_LISTED, partial(_grow, name=name)) for name in _HUGE}
    for command in ("eval", "resume", "branch", "record", "train"):
        table[f"a foreign Ray head: {command}"] = (
            "nothing connects to it",
            partial(_meet_head, command=command),
        )
    quick = ("umask 000", "a reused pid in locks", "half requests to the dashboard")
    return [
        FaultCase("surroundings", name, holds, check, quick=name in quick)
        for name, (holds, check) in table.items()
    ]


def _open_umask(harness: Harness) -> None:
    harness.spawn(*harness.train("CartPole-v1", *SERIAL), umask=0).wait().expect(0)
    harness.spawn("jobs", "status", "--runs-dir", str(harness.runs_dir), umask=0).wait().expect(2)
    state = harness.folder / "state" / "mission-gym"
    private = [harness.only_run().path / ".lock", state, state / "fleet"]
    wrong = [path.name for path in private if path.stat().st_mode & 0o077]
    must(not wrong, f"others may open {wrong}")


def _reuse_pid(harness: Harness) -> None:
    """Name a living process of the user in the locks of a run and of a job that have ended."""
    run, file = harness.copy_run(), harness.here / "mine.yaml"
    file.write_text(json.dumps({"defaults": {"env": "no_such_module:Env"}, "jobs": [{"name": "a"}]}))
    where = ("--runs-dir", str(harness.runs_dir))
    harness.run("jobs", "run", str(file), *where).expect(2, 3)
    (lock,) = harness.runs_dir.glob("mine-*/jobs/*.lock")
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            words = lock.read_text().split()
            start = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
            for path in (lock, run.path / ".lock"):
                path.write_text(f"{other.pid} {start} {words[2]} {words[3]}")
            harness.run("jobs", "stop", "mine", *where).expect(0)
            harness.run("jobs", "status", "mine", *where).expect(0)
            harness.run(*list_words(harness, run, "resume")).expect(0)
            must(other.poll() is None, "another process was signalled")
        finally:
            other.kill()


class _Dashboard:
    """A dashboard with few descriptors."""

    def __init__(self, harness: Harness, stack: ExitStack) -> None:
        harness.copy_run()

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_FEW_FILES, _FEW_FILES))

        words = ("watch", "--port", "0", "--runs-dir", str(harness.runs_dir))
        self._command = harness.spawn(*words, preexec_fn=limit)
        stack.callback(self._command.kill)
        harness.wait_until(lambda: "\n" in self._command.out.read_text(), "the dashboard", self._command)
        parts = urlsplit(self._command.out.read_text().splitlines()[0])
        self.port, cookie = parts.port or 0, f"mission-gym-{parts.port}"
        self._cookie = f"{cookie}={make_secret(parts.query.removeprefix('token='), cookie)}"

    def ask(self, path: str) -> tuple[http.client.HTTPConnection, int]:
        """Send a request, and return its connection and the code of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path, headers={"Cookie": self._cookie})
        return connection, connection.getresponse().status


def _send_halves(harness: Harness) -> None:
    with ExitStack() as stack:
        server = _Dashboard(harness, stack)
        for _ in range(_NUM_SOCKETS):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            half.sendall(_HALF)
        connection, code = server.ask("/api/runs")
        connection.close()
        must(code == 200, f"the answer is {code}")


def _open_streams(harness: Harness) -> None:
    with ExitStack() as stack:
        server = _Dashboard(harness, stack)
        codes = []
        for _ in range(150):
            connection, code = server.ask("/events?since=0")
            stack.callback(connection.close)
            codes.append(code)
        must(codes.count(200) < 150 and codes[-1] == 503, f"{codes.count(200)} streams are open")
        connection, code = server.ask("/api/runs")
        connection.close()
        must(code == 200, f"the answer is {code}")


def _deny_home(harness: Harness) -> None:
    home = {"HOME": "/proc", "XDG_STATE_HOME": "/proc/state", "XDG_CACHE_HOME": "/proc/cache"}
    harness.spawn(*harness.train("CartPole-v1", *SERIAL), env=home).wait().expect(0)


def _unshare(harness: Harness, flags: tuple[str, ...], prepare: str) -> None:
    """Train with workers in new namespaces, after a command that prepares them."""
    program = shutil.which("unshare")
    prepare = prepare.format(runs=harness.runs_dir)
    if (
        program is None
        or subprocess.run([program, *flags, "sh", "-c", prepare], capture_output=True).returncode
    ):
        raise SkippedFault("namespaces need Linux and root")
    script = f'{prepare} && exec "$0" -m mission_gym "$@"'
    words = harness.train("CartPole-v1", *WORKERS)
    done = subprocess.run(
        [program, *flags, "sh", "-c", script, sys.executable, *words],
        cwd=harness.here, env=os.environ | harness.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    CommandResult(words, done.returncode, done.stdout, done.stderr).expect(0)


def _grow(harness: Harness, name: str) -> None:
    """Grow a file without using the disk, as a few bytes of an archive can."""
    other, huge = harness.copy_run("other"), harness.copy_run("huge")
    (huge.path / name).touch()
    os.truncate(huge.path / name, _HUGE_BYTES)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))

    where = ("--runs-dir", str(harness.runs_dir))
    listed = harness.spawn("runs", "list", "--json", *where, preexec_fn=limit).wait().expect(0)
    must(other.name in listed.out, "the other run is not listed")
    for words in (("runs", "show", "huge"), ("config", "huge"), ("report", "huge", "--out", "page.html")):
        harness.spawn(*words, *where, preexec_fn=limit).wait().expect(0, 2)


def _meet_head(harness: Harness, command: str) -> None:
    run = harness.copy_run()
    with socket.create_server(("127.0.0.1", 0)) as head:
        head.settimeout(0.0)
        edit_values(run, "vector", vector="ray", ray_address=f"127.0.0.1:{head.getsockname()[1]}")
        harness.run(*list_words(harness, run, command)).expect(0, 2)
        try:
            head.accept()[0].close()
        except BlockingIOError:
            return
    must(False, "the command connected to the cluster")
