"""Starts `mission-gym` commands by fork from a process that has imported everything, which saves seconds
each.

A command is a real process in its own session, with its own folder, environment and output files; only its
imports are shared. Requests and replies are lines of JSON. `Launcher` is the parent's side. The other side
runs as a script, and kills the remaining commands when its standard input ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mission_gym.vector import record

# Modules that commands import, including those of libraries.
_LOADED = (
    "numba",
    "rich.live",
    "scipy.linalg",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "tyro",
    "mission_gym.algorithms.dqn.learner",
    "mission_gym.algorithms.ppo.build",
    "mission_gym.video.record",
    "mission_gym.run.branch",
    "mission_gym.run.start",
)
_LOOK_S = 0.005


class Launcher:
    """The parent's side, started with the first command; one command is waited for at a time.

    path: a folder of modules that every command can import.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[str] | None = None

    def start(
        self,
        args: Sequence[str],
        folder: Path,
        out: Path,
        err: Path,
        env: Mapping[str, str],
        first_timeout_s: float | None = None,
    ) -> int:
        """Start `mission-gym ARGS` in a folder; return its pid. first_timeout_s: see `Harness.start`."""
        request = {
            "args": list(args),
            "folder": str(folder),
            "out": str(out),
            "err": str(err),
            "env": dict(env),
            "first_timeout_s": first_timeout_s,
        }
        return int(self._ask(request))

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Return the exit code of a command, negative for a signal; None if it still runs."""
        code = self._ask({"wait": pid, "timeout_s": timeout_s})
        return None if code is None else int(code)

    def close(self) -> None:
        """End the process and its commands."""
        if self._process is not None:
            self._process.communicate()

    def _ask(self, request: dict[str, Any]) -> Any:
        if self._process is None:
            paths = filter(None, (str(self._path), os.environ.get("PYTHONPATH")))
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def main() -> None:
    """Run the script's side; a forked command leaves through `sys.exit`, like a typed one."""
    for name in _LOADED:
        importlib.import_module(name)
    running: set[int] = set()
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if "wait" in request:
            answer = _wait(request["wait"], request["timeout_s"])
            if answer is not None:
                running.discard(request["wait"])
        else:
            answer = os.fork()
            if answer == 0:
                _become(request)
                runpy.run_module("mission_gym", run_name="__main__", alter_sys=True)
                return  # not reached: the program exits
            running.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _wait(pid: int, timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_S)


def _become(request: dict[str, Any]) -> None:
    os.setsid()
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY | os.O_CREAT),
        (2, request["err"], os.O_WRONLY | os.O_CREAT),
    ):
        descriptor = os.open(path, flags, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    with contextlib.suppress(OSError):  # if memory runs out, the injected fault must be the victim
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.chdir(request["folder"])
    os.environ.update(request["env"])
    tempfile.tempdir = None  # TMPDIR was just set
    sys.argv = ["mission-gym", *request["args"]]
    if request["first_timeout_s"] is not None:
        record.FIRST_TIMEOUT_S = request["first_timeout_s"]


if __name__ == "__main__":
    main()
