"""How child processes are started: on Linux forked from a template, else as interpreters of their own.

A template begins with the first child and ends with the last. It is a fresh interpreter with the path, the
folder, the variables and the cores that this process had then; once they have changed, another one forks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from mission_gym.procs import subreaper

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
FORKS = sys.platform == "linux"  # children from a template
MAX_FDS = 16  # that a child gets from a template: three pipes, the leash, shared memory
_lock = threading.Lock()
_newest: list[_Template] = []


def start_process(target: str, regions: Sequence[int]) -> subprocess.Popen[bytes] | Forked:
    """Start a child that runs `target`. regions: descriptors that it gets."""
    if FORKS:
        return Forked(target, regions)
    script = make_script(target, _read_path(), os.getpid())
    pipe = subprocess.PIPE
    return _run(script, regions, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)


@contextlib.contextmanager
def hold_fork_server(target: str | None) -> Iterator[None]:
    """Begin to import what children will run, and keep it between one child and the next; None: nothing."""
    if target is None or not FORKS:
        yield
        return
    template = _ask_template(target, [])
    try:
        yield
    finally:
        template.release()


class Forked:
    """A child of a template, with what is used of Popen's interface. Its keeper tells at the other end of
    the leash which process it is, and at last the child's code; anything that it hears there is its end."""

    def __init__(self, target: str, regions: Sequence[int]) -> None:
        self.returncode: int | None = None
        self._told = b""
        self._leash, leash = socket.socketpair()
        (commands, self.stdin), (self.stdout, replies), (self.stderr, words) = _pipe(), _pipe(), _pipe()
        with leash, commands, replies, words:
            given = [end.fileno() for end in (commands, replies, words, leash)]
            self._template = _ask_template(target, [*given, *regions])
        self.pid = self._template.process.pid  # until the child tells its own

    def poll(self) -> int | None:
        """The child's code, if it has ended with all that it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The child's code; TimeoutExpired if it has not ended by then."""
        end = time.monotonic() + (timeout or 0.0)
        while self.returncode is None:
            self._leash.settimeout(None if timeout is None else max(0.0, end - time.monotonic()))
            try:
                told = self._leash.recv(64)
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired("", timeout or 0.0) from error
            except ConnectionError:
                told = b""
            self._told += told
            if not told:
                self._end()
        return self.returncode

    def _end(self) -> None:
        """Nobody holds the other end of the leash any more."""
        self._leash.close()
        numbers = [number for (number,) in subreaper.TOLD.iter_unpack(self._told)]
        if not numbers:  # the template ended over its request: it could not import or fork
            self.returncode = self._template.process.wait()
        else:
            self.returncode = numbers[1] if len(numbers) > 1 else -signal.SIGKILL
        self._template.release()

    def terminate(self) -> None:
        """Ask the keeper to end all that is below it."""
        with contextlib.suppress(OSError):
            self._leash.send(b".", socket.MSG_NOSIGNAL)

    def kill(self) -> None:
        """End a keeper, or a template, that does not hear."""
        if self.poll() is None:
            known = len(self._told) >= subreaper.TOLD.size
            os.kill(subreaper.TOLD.unpack_from(self._told)[0] if known else self.pid, signal.SIGKILL)


class _Template:
    """The parent's end of a template."""

    def __init__(self, surroundings: Any) -> None:
        self.surroundings = surroundings
        self.num_users = 0
        self.requests, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        module = "mission_gym.procs.fork_server"
        run = f"from {module} import serve_template; serve_template({far.fileno()}, {os.getpid()})"
        script = f"import sys; sys.path[:] = {_read_path()!r}\n{run}"
        nothing = subprocess.DEVNULL
        with far:
            self.process = _run(script, [far.fileno()], stdin=nothing, stdout=nothing, stderr=nothing)

    def release(self) -> None:
        """One of its users, which are mostly children, has ended; it ends with the last."""
        with _lock:
            self.num_users -= 1
            if not self.num_users:
                self.requests.close()
                self.process.kill()
                self.process.wait()


def make_script(
    target: str, path: Sequence[str], parent: int, leash: int = -1, regions: Sequence[int] = ()
) -> str:
    """What an interpreter runs to become a child and, where processes fork, the keeper above it."""
    kept = (
        f"exec(open({subreaper.__file__!r}).read()); keep({parent}, {leash})" if hasattr(os, "fork") else ""
    )
    run = f"from mission_gym.procs import child_main; child_main({target!r}, {list(regions)!r})"
    return f"import sys; sys.path[:] = {list(path)!r}\n{kept}\n{run}"


def _ask_template(target: str, fds: Sequence[int]) -> _Template:
    """Have a child forked by the newest template, or by a new one."""
    surroundings = _read_surroundings()
    with _lock:
        for template in _newest:
            if template.num_users and template.surroundings == surroundings:
                with contextlib.suppress(OSError):  # it was killed
                    return _ask(template, target, fds)
        _newest[:] = [_Template(surroundings)]
        return _ask(_newest[0], target, fds)


def _ask(template: _Template, target: str, fds: Sequence[int]) -> _Template:
    socket.send_fds(template.requests, [target.encode()], list(fds), socket.MSG_NOSIGNAL)
    template.num_users += 1
    return template


def _read_surroundings() -> tuple[Any, ...]:
    """What a process has from the one that started it."""
    folder = os.readlink("/proc/self/cwd")  # one that was deleted, too
    return os.getpid(), list(sys.path), folder, dict(os.environ), os.sched_getaffinity(0)


def _read_path() -> list[str]:
    return [entry or os.getcwd() for entry in sys.path]


def _run(script: str, fds: Sequence[int], **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | _ONE_THREAD,
        start_new_session=True,
        pass_fds=fds,
        **streams,
    )


def _pipe() -> tuple[Any, Any]:
    read_fd, write_fd = os.pipe()
    return open(read_fd, "rb", buffering=0), open(write_fd, "wb", buffering=0)
