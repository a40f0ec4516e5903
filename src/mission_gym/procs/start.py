"""Starts child processes: on Linux forked from a fork server, elsewhere as new interpreters.

A fork server lives from the first child to the last. It is a new interpreter with the import path, working
directory, environment variables and cores that this process had then. After one of them has changed, a new
fork server takes over. Other programs start below a subreaper: nothing that they start outlives them, or us.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from mission_gym.errors import ResourceRefused, UsageError
from mission_gym.names import read_path
from mission_gym.procs import subreaper

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
FORKS = sys.platform == "linux"  # children are forked from a fork server
MAX_FDS = 16  # descriptors of a forked child: three pipes, the control socket, shared memory
_lock = threading.Lock()
_newest: list[_ForkServer] = []
_END_S = 5.0  # for a subreaper to kill everything below it


def start_process(target: str, regions: Sequence[int]) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start a child that runs `target`; regions: descriptors of shared memory that it gets."""
    if FORKS:
        return ForkedProcess(target, regions)
    pipe = subprocess.PIPE
    script = make_script(target, read_path(added=False), read_path(), os.getpid())
    return _run(script, regions, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)


@contextmanager
def explain_refusal() -> Iterator[None]:
    """Raise ResourceRefused if the system refuses a process, a thread or a pipe in the `with` block."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: of threads
        raise make_refusal(error) from error


def make_refusal(error: Exception) -> ResourceRefused:
    """The error for a process or thread that the system refuses."""
    remedy = "end other processes, or raise the limits (ulimit -u, ulimit -n)"
    return ResourceRefused(f"the system refuses another process or thread ({error}); {remedy}")


@contextmanager
def hold_fork_server(target: str | None) -> Iterator[None]:
    """Start importing the code of future children, and keep it between one child and the next. None: do
    nothing."""
    if target is None or not FORKS:
        yield
        return
    with explain_refusal():
        server = _request_fork(target, [])
    try:
        yield
    finally:
        server.release()


class ForkedProcess:
    """A child of a fork server, with the part of Popen's interface that we use.

    Its subreaper sends its own pid over the control socket, and finally the child's exit code. Any byte that
    the subreaper receives there makes it end the child.
    """

    def __init__(self, target: str, regions: Sequence[int]) -> None:
        self.returncode: int | None = None
        self.refusal: OSError | None = None  # why there is no process
        self._received = b""
        self._control, far = socket.socketpair()
        (commands, self.stdin), (self.stdout, replies), (self.stderr, output) = _pipe(), _pipe(), _pipe()
        with far, commands, replies, output:
            given = [end.fileno() for end in (commands, replies, output, far)]
            try:
                self._server = _request_fork(target, [*given, *regions])
            except OSError:
                for end in (self._control, self.stdin, self.stdout, self.stderr):
                    end.close()
                raise
        self.pid = self._server.process.pid  # until the child reports its own

    def poll(self) -> int | None:
        """Return the exit code if the child and all its descendants have ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; TimeoutExpired."""
        end = time.monotonic() + (timeout or 0.0)
        while self.returncode is None:
            self._control.settimeout(None if timeout is None else max(0.0, end - time.monotonic()))
            try:
                data = self._control.recv(64)
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired("", timeout or 0.0) from error
            except ConnectionError:
                data = b""
            self._received += data
            if not data:
                self._finish()
        return self.returncode

    def _finish(self) -> None:
        """Set the exit code after the other end of the control socket was closed."""
        self._control.close()
        numbers = [number for (number,) in subreaper.NUMBER.iter_unpack(self._received)]
        if not numbers:  # the fork server ended during the request: it could not import or fork
            self.returncode = self._server.process.wait()
        elif numbers[0] < 0:
            self.returncode, self.refusal = 1, OSError(-numbers[0], os.strerror(-numbers[0]))
        else:
            self.returncode = numbers[1] if len(numbers) > 1 else -signal.SIGKILL
        self._server.release()

    def terminate(self) -> None:
        """Ask the subreaper to end the child and its descendants."""
        with suppress(OSError):
            self._control.send(b".", socket.MSG_NOSIGNAL)

    def kill(self) -> None:
        """Kill a subreaper, or a fork server, that does not react."""
        if self.poll() is None:
            is_known = len(self._received) >= subreaper.NUMBER.size
            pid = subreaper.NUMBER.unpack_from(self._received)[0] if is_known else self.pid
            if pid > 0:
                os.kill(pid, signal.SIGKILL)


class _ForkServer:
    """The parent's end of a fork server."""

    def __init__(self, surroundings: Any) -> None:
        self.surroundings = surroundings
        self.num_users = 0
        self.requests, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        module = "mission_gym.procs.fork_server"
        arguments = f"{far.fileno()}, {os.getpid()}, {read_path()!r}"
        run = f"from {module} import serve_forks; serve_forks({arguments})"
        script = f"import sys; sys.path[:] = {read_path(added=False)!r}\n{run}"
        nothing = subprocess.DEVNULL
        with far:
            self.process = _run(script, [far.fileno()], stdin=nothing, stdout=nothing, stderr=nothing)

    def request(self, target: str, fds: Sequence[int]) -> _ForkServer:
        """Request a child, or with no descriptors an import; its users are mostly children."""
        socket.send_fds(self.requests, [target.encode()], list(fds), socket.MSG_NOSIGNAL)
        self.num_users += 1
        return self

    def release(self) -> None:
        """Count one user less; the fork server ends with the last."""
        with _lock:
            self.num_users -= 1
            if not self.num_users:
                self.requests.close()
                self.process.kill()
                self.process.wait()


def make_script(
    target: str,
    own_path: Sequence[str],
    path: Sequence[str],
    parent: int,
    control: int = -1,
    regions: Sequence[int] = (),
) -> str:
    """Return the code for an interpreter that becomes a child and, if processes can fork, its subreaper.
    own_path: for our modules and those that they need, path: for everything later."""
    reaped = make_subreaper_code(f"{parent}, {control}") if hasattr(os, "fork") else ""
    arguments = f"{target!r}, {list(path)!r}, {list(regions)!r}"
    run = f"from mission_gym.procs import child_main; child_main({arguments})"
    return f"import sys; sys.path[:] = {list(own_path)!r}\n{reaped}\n{run}"


def make_subreaper_code(arguments: str) -> str:
    """Return code that forks below a subreaper without importing our package."""
    return f"exec(open({subreaper.__file__!r}).read()); fork_below_subreaper({arguments})"


def _request_fork(target: str, fds: Sequence[int]) -> _ForkServer:
    """Request a child from the newest fork server, or from a new one."""
    surroundings = _read_surroundings()
    with _lock:
        for server in _newest:
            if server.num_users and server.surroundings == surroundings:
                with suppress(OSError):  # it was killed
                    return server.request(target, fds)
        _newest[:] = [_ForkServer(surroundings)]
        return _newest[0].request(target, fds)


def _read_surroundings() -> tuple[Any, ...]:
    """Return everything that a process inherits from us."""
    folder = os.readlink("/proc/self/cwd")  # also a folder that was deleted
    return os.getpid(), list(sys.path), folder, dict(os.environ), os.sched_getaffinity(0)


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


def start_command(
    words: Sequence[str],
    *,
    folder: str = "",
    separate_stderr: bool = True,
    variables: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command. folder: is removed when the command ends, even if we are killed. separate_stderr:
    stderr has its own pipe; otherwise stdout's pipe has both. variables: additional environment variables."""
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(f"there is no program {words[0]!r} (looked for in PATH, from {os.getcwd()})")
    argv = [program, *words[1:]]
    if hasattr(os, "fork"):
        script = (
            f"import sys; sys.path[:] = {read_path(added=False)!r}\n"
            f"{make_subreaper_code(f'{os.getpid()}, folder={folder!r}')}\n"
            "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"  # Python ignores it, and that is inherited
            f"os.execv({program!r}, {argv!r})"
        )
        argv = [sys.executable, "-I", "-S", "-c", script]
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if separate_stderr else subprocess.STDOUT,
        bufsize=0,
        env=os.environ | (variables or {}),
        start_new_session=True,
    )


def end_process(process: Any, grace_s: float) -> bool:
    """End a Popen or ForkedProcess with all its descendants.

    grace_s: time to end by itself after its input was closed. Returns whether it did.
    """
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    if grace_s:
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    ended_by_itself = process.poll() is not None
    if not hasattr(os, "fork"):  # there is no subreaper
        from mission_gym.procs.children import ProcessTree

        ProcessTree(process.pid).end()
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:  # something can't be killed, or the subreaper was stopped
        process.kill()
        process.wait()
    return ended_by_itself
