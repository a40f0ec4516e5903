"""Code that may raise, crash or hang, tried in a process of its own with this one's search path."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import IO

DEADLINE_S = 60.0
_GRACE_S = 5.0  # the child ends itself at the deadline, with its stack; only one that can't is killed
_FILE = re.compile(r'File "([^<"]+)"')


@dataclass(frozen=True, slots=True)
class Attempt:
    """How it went: the last line that was printed, or the error and the file that it came from."""

    output: str = ""
    error: str = ""
    file: str = ""


def run_trial(code: str, deadline_s: float = DEADLINE_S) -> Attempt:
    """Run Python code, and say how it ended."""
    path = [entry or os.getcwd() for entry in sys.path]
    head = (
        f"import faulthandler, sys; faulthandler.enable(); sys.path[:] = {path!r}\n"
        f"faulthandler.dump_traceback_later({deadline_s}, exit=True)\n"
    )
    # Files, since a pipe that something left behind holds open would be waited for.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        command = [sys.executable, "-c", head + code]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=deadline_s + _GRACE_S
            )
            code_or_signal = done.returncode
        except subprocess.TimeoutExpired:
            return Attempt(error=f"it did not end within {deadline_s:g} s")
        lines, said = (_read(file).splitlines() for file in (out, err))
    if code_or_signal == 0:
        return Attempt(next((line for line in reversed(lines) if line.strip()), ""))
    if any(line.startswith("Timeout (") for line in said):
        return Attempt(error=f"it did not end within {deadline_s:g} s", file=_find_file(said, "Thread "))
    if code_or_signal < 0:
        name = signal.Signals(-code_or_signal).name
        return Attempt(error=f"it was killed by {name}", file=_find_file(said, "Current thread "))
    last = next((line for line in reversed(said) if line.strip()), f"it ended with code {code_or_signal}")
    return Attempt(error=last, file=(_FILE.findall("\n".join(said)) or [""])[-1])


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return str(file.read(), "utf-8", "replace")


def _find_file(said: list[str], thread: str) -> str:
    """The file of the innermost frame, which faulthandler writes first; the main thread is its last one."""
    start = max((number for number, line in enumerate(said) if line.startswith(thread)), default=0)
    first = _FILE.search("\n".join(said[start:]))
    return "" if first is None else first[1]
