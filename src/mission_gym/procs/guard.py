"""A small process that outlives its parent by a moment, to end the children that can't end themselves.

A child that hangs in C, or is stopped, sees nothing of its parent's end. So the guard reads from its standard
input which children there are, and at the end of it kills them and all they started. It runs as a script
and imports only the standard library, so that it is small and soon there; `Guard` is the parent's end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

COOKIE = "MISSION_GYM_CHILD"  # marks a child and all that it starts, even in sessions of their own
_GRACE_S = 0.5  # an orderly end is the child's own


class Guard:
    """One guard for all children of this process, started with the first and ended with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, pid: int, token: str) -> None:
        """End this child if this process ends before `forget`."""
        with self._lock:
            self._tokens.add(token)
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-E", "-S", __file__, *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    start_new_session=True,
                )
            self._tell(f"+{pid} {token}\n")

    def forget(self, pid: int, token: str) -> None:
        """This child was ended; it may be told twice."""
        with self._lock:
            if token not in self._tokens:
                return
            self._tokens.discard(token)
            self._tell(f"-{pid} {token}\n")
            if not self._tokens and self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None

    def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a guard that was killed is replaced with the next child
            self._process.stdin.write(line.encode())


def end_tree(pid: int, token: str) -> None:
    """Kill a child, its group, and every process that carries its mark."""
    end_marked(token)
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def end_marked(token: str) -> None:
    """Kill every process that carries a mark."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(COOKIE) == token:
                process.kill()


def main() -> None:
    """What the guard runs."""
    children: dict[str, int] = {}
    for line in sys.stdin:
        pid, token = line[1:].split()
        if line[0] == "+":
            children[token] = int(pid)
        else:
            children.pop(token, None)
    if not children:
        return
    time.sleep(_GRACE_S)
    sys.path[:] = sys.argv[1:]  # psutil is there
    for token, pid in children.items():
        if _has_mark(pid, token):
            end_tree(pid, token)
        else:  # it ended, and its number may be another's by now
            end_marked(token)


def _has_mark(pid: int, token: str) -> bool:
    import psutil

    try:
        return psutil.Process(pid).environ().get(COOKIE) == token
    except (psutil.Error, OSError):
        return False


if __name__ == "__main__":
    main()
