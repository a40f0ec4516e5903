"""Supervised child processes and the memory they share; nothing is left behind whatever dies.

A child is a plain Python process that runs `module:callable` with a Link: commands come in and replies go
out as pickled frames over pipes between our own processes. It has its own session, capped threads, the
parent's import path, and its output in a bounded log. When the parent's end of the command pipe closes, by
`kill -9` too, the child ends itself and everything it started.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import importlib
import mmap
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mission_gym.data import Array
from mission_gym.errors import UsageError, WorkerDied, WorkerError, WorkerTimeout

_COOKIE = "MISSION_GYM_CHILD"  # marks a child and all that it starts, even in sessions of their own
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
_HEADER = struct.Struct("<I")
_ALIGN = 64  # a cache line: two writers never share one
_TAIL_BYTES = 16_384
_STACK_SIGNAL = getattr(signal, "SIGUSR2", None)
_SPIN_S = 30e-6


class Region:
    """Shared memory without a name: nothing to unlink. Arrays are carved in the same order everywhere."""

    def __init__(self, size: int, handle: int | str | None = None) -> None:
        self.size = max(size, 1)
        self._owned: int | None = None
        try:
            if sys.platform == "win32":
                self.handle: int | str = handle or f"mission-gym-{uuid.uuid4().hex}"
                self._memory = mmap.mmap(-1, self.size, tagname=str(self.handle))
                return
            self.handle = _make_memory_file(self.size) if handle is None else int(handle)
            self._owned = self.handle
            self._memory = mmap.mmap(self.handle, self.size)
        except OSError as error:
            self.close()
            raise WorkerError(
                f"{size / 1e6:.0f} MB of shared memory can't be had ({error}); free memory, or use fewer "
                "environments or steps per environment [--n-envs, --n-steps-per-env]"
            ) from error

    def carver(self) -> Carver:
        """Carve from the beginning."""
        return Carver(self._memory)

    def close(self) -> None:
        """Give the descriptor back; the memory goes with its last array."""
        if self._owned is not None:
            os.close(self._owned)
            self._owned = None


class Carver:
    """Gives out zeroed arrays of a buffer one after the other; without a buffer it only counts."""

    def __init__(self, buffer: mmap.mmap | None = None) -> None:
        self.size = 0
        self._buffer = buffer

    def __call__(self, shape: int | Sequence[int], dtype: Any) -> Array:
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        count = int(np.prod(dims, dtype=np.int64))
        offset = self.size
        self.size += -(-count * kind.itemsize // _ALIGN) * _ALIGN
        if self._buffer is None:
            return np.broadcast_to(np.zeros((), kind), dims)
        return np.frombuffer(self._buffer, kind, count, offset).reshape(dims)


def _make_memory_file(size: int) -> int:
    import psutil

    free = psutil.virtual_memory().available
    if size > free:  # the system would kill us half-way rather than refuse
        raise OSError(errno.ENOMEM, f"{free / 1e6:.0f} MB are free")
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("mission-gym")
    else:
        fd, path = tempfile.mkstemp(prefix="mission-gym-")
        os.unlink(path)
    try:
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)  # refused now rather than a bus error later
    except OSError:
        os.close(fd)
        raise
    return fd


class Child:
    """The parent's end of one child process."""

    def __init__(
        self, target: str, setup: Any, *, regions: Sequence[Region] = (), on_output: Callable[[bytes], None]
    ) -> None:
        self._token = uuid.uuid4().hex
        path = [entry or os.getcwd() for entry in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from mission_gym.procs import child_main; child_main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=os.environ | _ONE_THREAD | {_COOKIE: self._token},
            start_new_session=True,
            pass_fds=[int(region.handle) for region in regions if isinstance(region.handle, int)],
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._buffer = bytearray()
        self._tail: deque[bytes] = deque()
        self._on_output = on_output
        self._ended: str | None = None
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._drain = threading.Thread(target=self._read_output, name=f"output of {self.pid}", daemon=True)
        self._drain.start()
        with contextlib.suppress(WorkerError):  # one that died at once is met by the first recv
            self.send((target, setup, [(region.size, region.handle) for region in regions]))

    def fileno(self) -> int:
        """The descriptor that becomes readable when a reply comes."""
        return self._out

    def send(self, message: Any, timeout_s: float = 30.0) -> None:
        """Hand over a command; WorkerDied or WorkerTimeout if the child does not take it."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        view = memoryview(_HEADER.pack(len(data)) + data)
        deadline = time.monotonic() + timeout_s
        while view:
            try:
                view = view[os.write(self._in, view) :]
            except BlockingIOError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise WorkerTimeout(f"the worker took no command for {timeout_s:.0f} s") from None
                _poll_one(self._in, select.POLLOUT, 0.1)
            except OSError as error:
                raise WorkerDied(f"the worker process {self.pid} {self.describe_end()}") from error

    def take(self) -> list[Any]:
        """Return the replies that have come; WorkerDied at the end of the child."""
        ended = False
        while True:
            try:
                chunk = os.read(self._out, 1 << 20)
            except BlockingIOError:
                break
            if not chunk:
                ended = True
                break
            self._buffer += chunk
            if len(chunk) < 1 << 16:
                break
        replies = []
        start, size = 0, len(self._buffer)
        while size - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer, start)
            begin = start + _HEADER.size
            if size - begin < length:
                break
            with memoryview(self._buffer) as view:
                replies.append(pickle.loads(view[begin : begin + length]))
            start = begin + length
        del self._buffer[:start]
        if ended and not replies:
            raise WorkerDied(f"the worker process {self.pid} {self.describe_end()}")
        return replies

    def is_gone(self) -> bool:
        """Whether the process has ended; its pipe may be held open by its own children."""
        return self._process.poll() is not None

    def describe_end(self) -> str:
        """How the process ended: `was killed by SIGSEGV`, `ended with code 3`."""
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if code >= 0:
            return f"ended with code {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    def read_stack(self) -> str:
        """Ask a hung child for the Python stacks of its threads, and return them."""
        if _STACK_SIGNAL is None:
            return ""
        before = self.tail()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(_STACK_SIGNAL)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            shown = self.tail()
            if shown != before and shown.endswith("\n"):
                break
            self._drain.join(0.02)
        return self.tail()[-4000:]

    def tail(self) -> str:
        """The last output of the child."""
        return b"".join(self._tail).decode("utf-8", "replace")[-_TAIL_BYTES:]

    def memory_bytes(self) -> int:
        """Resident memory of the child, its own children aside; 0 if it is gone."""
        import psutil

        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def end(self, grace_s: float = 0.0) -> bool:
        """End the child and all it started; False if it had to be killed because the grace ran out."""
        in_time = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        if grace_s:
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                in_time = False
        _end_tree(self.pid, self._token)
        self._process.wait()
        self._drain.join(2.0)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None and not (pipe is self._process.stderr and self._drain.is_alive()):
                pipe.close()
        return in_time

    def _read_output(self) -> None:
        assert self._process.stderr is not None
        fd = self._process.stderr.fileno()
        while chunk := os.read(fd, 1 << 16):
            self._tail.append(chunk[-_TAIL_BYTES:])
            while sum(map(len, self._tail)) - len(self._tail[0]) > _TAIL_BYTES:
                self._tail.popleft()
            self._on_output(chunk)


def wait_for_replies(children: Iterable[Child], timeout_s: float, *, spin: bool = False) -> list[Child]:
    """Wait until some of the children have replied or ended; spin first where a core is free for it."""
    by_fd = {child.fileno(): child for child in children}
    poll = select.poll()
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    if spin:
        end = time.perf_counter() + _SPIN_S
        while time.perf_counter() < end:
            ready = poll.poll(0)
            if ready:
                return [by_fd[fd] for fd, _ in ready]
    return [by_fd[fd] for fd, _ in poll.poll(timeout_s * 1000)]


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def dump_object(target: Any) -> bytes:
    """A callable of the user's, or what holds one, for a child: by import path, else by value."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(target))
    except Exception as error:  # border: the user's objects
        raise UsageError(
            f"the environment's callable can't be sent to a worker ({type(error).__name__}: {error}); give module:callable, "
            "or use the serial backend [--vector serial]"
        ) from error


class Link:
    """The child's end: commands in, replies out. Several threads may reply."""

    def __init__(self, read_fd: int, write_fd: int, regions: list[Region]) -> None:
        self.regions = regions
        self._read_fd, self._write_fd = read_fd, write_fd
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(read_fd, select.POLLIN)

    def recv(self, spin: bool = False) -> Any:
        """Wait for the next command; EOFError when the parent is gone."""
        if spin:
            end = time.perf_counter() + _SPIN_S
            while time.perf_counter() < end and not self._poll.poll(0):
                pass
        (length,) = _HEADER.unpack(self._read(_HEADER.size))
        return pickle.loads(self._read(length))

    def send(self, reply: Any) -> None:
        """Hand over a reply."""
        try:
            data = pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError):  # classes that came by value go back so
            import cloudpickle

            data = cloudpickle.dumps(reply)
        view = memoryview(_HEADER.pack(len(data)) + data)
        with self._lock:
            while view:
                view = view[os.write(self._write_fd, view) :]

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = os.read(self._read_fd, count)
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def child_main() -> None:
    """What a child runs: its pipes go out of the environment's reach, then `module:callable(link, setup)`."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what environments print goes to the log
    if _STACK_SIGNAL is not None:
        faulthandler.register(_STACK_SIGNAL, all_threads=True)
    threading.Thread(target=_end_with_parent, args=(read_fd,), daemon=True).start()
    link = Link(read_fd, write_fd, [])
    with contextlib.suppress(EOFError):
        target, setup, regions = link.recv()
        link.regions = [Region(size, handle) for size, handle in regions]
        module, _, name = target.partition(":")
        getattr(importlib.import_module(module), name)(link, setup)
    sys.stdout.flush()
    os._exit(0)  # threads of environments must not hold the process


def describe_error(error: BaseException) -> tuple[BaseException, str]:
    """An error in a form that crosses processes, with its traceback as text."""
    text = "".join(traceback.format_exception(error.__cause__ or error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  border: the user's exception classes
        return WorkerError(f"{type(error).__name__}: {error}"), text
    return error, text


def _end_with_parent(fd: int) -> None:
    """Wait until the parent's end of the pipe is closed, then end the whole tree."""
    poll = select.poll()
    poll.register(fd, 0)  # hang-up is always reported
    poll.poll()
    time.sleep(0.5)  # an orderly end is the main thread's
    _end_tree(os.getpid(), os.environ.get(_COOKIE, ""))
    os._exit(1)


def _end_tree(pid: int, token: str) -> None:
    """Kill a child's group and every process that carries its mark, itself last."""
    import psutil

    me = os.getpid()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in (me, pid) and process.environ().get(_COOKIE) == token:
                process.kill()
    if pid != me:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _poll_one(fd: int, event: int, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    poll.poll(timeout_s * 1000)


class BoundedLog:
    """Output of children in a file that stops growing at its cap; without a path it is discarded."""

    def __init__(self, path: str | os.PathLike[str] | None, cap_bytes: int = 1 << 20) -> None:
        self._path, self._cap, self._size = path, cap_bytes, 0
        self._lock = threading.Lock()

    def __call__(self, chunk: bytes) -> None:
        with self._lock:
            room = self._cap - self._size
            if self._path is None or room <= 0:
                return
            self._size += len(chunk)
            with contextlib.suppress(OSError), open(self._path, "ab") as file:  # a full disk ends no run
                file.write(chunk[:room])
                if len(chunk) >= room:
                    file.write(b"\n[the log is full; further output is dropped]\n")
