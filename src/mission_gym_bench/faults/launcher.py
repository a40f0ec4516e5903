"""Starts `mission-gym` commands from a process that has loaded everything, by fork: seconds less for each.

A command is a real process in a session of its own, with its own folder, environment and output files; only
its imports were made before. Orders and answers are lines of JSON. `Launcher` is the parent's end; the other
end runs as a script, and kills what still runs when its standard input ends.
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

from mission_gym.vector import restarts

# What commands load, libraries of theirs included.
_LOADED = (
    "numba",
    "rich.live",
    "scipy.linalg",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "tyro",
    "mission_gym.algorithms.dqn.build",
    "mission_gym.algorithms.ppo.build",
    "mission_gym.video.record",
    "mission_gym.run.branch",
    "mission_gym.run.start",
)
_LOOK_S = 0.005


class Launcher:
    """The parent's end, begun with the first command; commands are waited for one at a time.

    `path` is importable in every command.
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
        """Start `mission-gym ARGS` in a folder; returns its pid. first_timeout_s: see `Lab.start`."""
        order = {
            "args": list(args),
            "folder": str(folder),
            "out": str(out),
            "err": str(err),
            "env": dict(env),
            "first_timeout_s": first_timeout_s,
        }
        return int(self._ask(order))

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """The exit code of a command, negative for a signal; None if it still runs."""
        code = self._ask({"wait": pid, "timeout_s": timeout_s})
        return None if code is None else int(code)

    def close(self) -> None:
        """End it, and whatever it started that still runs."""
        if self._process is not None:
            self._process.communicate()

    def _ask(self, order: dict[str, Any]) -> Any:
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
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def main() -> None:
    """What the process runs; a forked command leaves through `sys.exit`, as one that was typed does."""
    for name in _LOADED:
        importlib.import_module(name)
    running: set[int] = set()
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        if "wait" in order:
            answer = _wait(order["wait"], order["timeout_s"])
            if answer is not None:
                running.discard(order["wait"])
        else:
            answer = os.fork()
            if answer == 0:
                _become(order)
                runpy.run_module("mission_gym", run_name="__main__", alter_sys=True)
                return  # not reached: the program ends with an exit code
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


def _become(order: dict[str, Any]) -> None:
    os.setsid()
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, order["out"], os.O_WRONLY | os.O_CREAT),
        (2, order["err"], os.O_WRONLY | os.O_CREAT),
    ):
        descriptor = os.open(path, flags, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    with contextlib.suppress(OSError):  # where memory runs out, what was injected is to be the victim
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.chdir(order["folder"])
    os.environ.update(order["env"])
    tempfile.tempdir = None  # TMPDIR was just set
    sys.argv = ["mission-gym", *order["args"]]
    if order["first_timeout_s"] is not None:
        restarts.FIRST_TIMEOUT_S = order["first_timeout_s"]


if __name__ == "__main__":
    main()
