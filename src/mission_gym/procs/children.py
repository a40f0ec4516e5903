"""Child processes from the parent's side: starting, messaging, watching and ending them."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mission_gym.errors import (
    ResourceRefused,
    UsageError,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    describe,
)
from mission_gym.procs.link import HEADER, STACK_SIGNAL
from mission_gym.procs.memory import Region
from mission_gym.procs.pipes import Pipes, make_pipes, wait_for_pipes
from mission_gym.procs.start import end_process, explain_refusal, make_refusal, start_process

_TAIL_BYTES = 16_384
_POLL_S = 0.25  # until the end of a child is noticed whose pipe is held open
_END_S = 5.0  # for a subreaper to end everything that its worker started
LATER: Any = object()


class Child:
    """The parent's end of one child process. setup: LATER if `begin` sends it."""

    def __init__(
        self, target: str, setup: Any, *, regions: Sequence[Region] = (), on_output: Callable[[bytes], None]
    ) -> None:
        self._regions = regions
        handles = [region.handle for region in regions if isinstance(region.handle, int)]
        with explain_refusal():
            self._process = start_process(target, handles)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid  # until the child, which may be below a subreaper, reports its own
        self._knows_pid = False
        self.pipes: Pipes = make_pipes(self._process.stdin.fileno(), self._process.stdout.fileno())
        self._buffer = bytearray()
        try:
            with explain_refusal():
                self._output = OutputReader(self._process.stderr, self.pid, on_output, _TAIL_BYTES)
        except ResourceRefused:
            self.pipes.close()
            end_process(self._process, 0.0)
            raise
        if setup is not LATER:
            self.begin(setup)

    def begin(self, setup: Any) -> None:
        """Send its setup to a child that was started without one."""
        with contextlib.suppress(WorkerError):  # if it died at once, the first reply reports it
            self.send((setup, [(region.size, region.handle) for region in self._regions]))

    def send(self, message: Any, timeout_s: float = 30.0) -> None:
        """Send a command; WorkerDied or WorkerTimeout if the child does not accept it."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            if not self.pipes.write(HEADER.pack(len(data)) + data, timeout_s):
                raise WorkerTimeout(f"the worker accepted no command for {timeout_s:.0f} s")
        except OSError as error:
            raise self._died() from error

    def take(self) -> list[Any]:
        """Return the replies that have arrived; after the last one of a child that ended, WorkerDied, or
        ResourceRefused if it could not start."""
        chunk, ended = self.pipes.read()
        self._buffer += chunk
        replies = []
        start, size = 0, len(self._buffer)
        while size - start >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer, start)
            begin = start + HEADER.size
            if size - begin < length:
                break
            with memoryview(self._buffer) as view:
                replies.append(pickle.loads(view[begin : begin + length]))
            start = begin + length
        del self._buffer[:start]
        if replies and not self._knows_pid:
            self.pid, self._knows_pid = replies.pop(0), True
        if ended and not replies:
            raise self._died()
        return replies

    def wait(self, timeout_s: float) -> list[Any]:
        """Wait for replies; empty after the timeout. WorkerDied if the child has ended."""
        end = time.monotonic() + timeout_s
        while True:
            is_gone, left_s = self.is_gone(), max(0.0, end - time.monotonic())
            if wait_for_replies([self], min(left_s, _POLL_S)) and (replies := self.take()):
                return replies
            if is_gone:  # checked before the pipe, so its last replies have been read
                raise self._died()
            if not left_s:
                return []

    def is_gone(self) -> bool:
        """Return whether the process has ended; its own children may still hold its pipe open."""
        return self._process.poll() is not None

    def _died(self) -> WorkerDied | ResourceRefused:
        end = self.describe_end()
        refusal: OSError | None = getattr(self._process, "refusal", None)
        if refusal is not None:
            return make_refusal(refusal)
        return WorkerDied(f"the worker process {self.pid} {end}")

    def describe_end(self) -> str:
        """Describe how the process ended: `was killed by SIGSEGV`, `ended with code 3`."""
        try:
            return describe_code(self._process.wait(_END_S))
        except subprocess.TimeoutExpired:
            return "closed its pipe"

    def was_killed(self) -> bool:
        """Return whether a signal has ended the process."""
        return (self._process.poll() or 0) < 0

    def read_stack(self) -> str:
        """Make a hung child print the Python stacks of its threads, and return its output."""
        if STACK_SIGNAL is None:
            return ""
        before = self.tail()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, STACK_SIGNAL)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            shown = self.tail()
            if shown != before and shown.endswith("\n"):
                break
            self._output.wait(0.02)
        return self.tail()[-4000:]

    def tail(self) -> str:
        """Return the last output of the child."""
        return self._output.tail()

    def memory_bytes(self) -> int:
        """Return the resident memory of the child without its own children; 0 if it is gone."""
        import psutil

        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def end(self, grace_s: float = 0.0) -> None:
        """End the child and everything it started; grace_s: time to end by itself after its input closes."""
        self.pipes.close()
        end_process(self._process, grace_s)
        self._output.close(2.0)
        if self._process.stdout is not None:
            self._process.stdout.close()


class OutputReader:
    """Reads a process's output in a thread: passes it to `on_output` and keeps the last bytes."""

    def __init__(self, pipe: Any, pid: int, on_output: Callable[[bytes], None], tail_bytes: int) -> None:
        self.pipe, self._on_output, self._tail_bytes = pipe, on_output, tail_bytes
        self._tail: deque[bytes] = deque()
        self._thread = threading.Thread(target=self._read, name=f"output of {pid}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the pipe was closed
            while chunk := os.read(self.pipe.fileno(), 1 << 16):
                self._tail.append(chunk[-self._tail_bytes :])
                while sum(map(len, self._tail)) - len(self._tail[0]) > self._tail_bytes:
                    self._tail.popleft()
                self._on_output(chunk)

    def tail(self) -> str:
        """Return the last output."""
        return b"".join(self._tail).decode("utf-8", "replace")[-self._tail_bytes :]

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the output."""
        self._thread.join(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait for the end of the output, then close the pipe, unless another process holds it open."""
        self.wait(timeout_s)
        if not self._thread.is_alive():
            self.pipe.close()


class Spares:
    """Children that start before their work is known, and their shared memory, which has no size yet.

    Code that takes a child from the list must end it; code that takes the last one must close the memory.
    """

    def __init__(self, target: str, count: int) -> None:
        self.region = Region()
        self.children: list[Child] = []
        try:
            for _ in range(count):
                child = Child(target, LATER, regions=[self.region], on_output=BoundedLog(None))
                self.children.append(child)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the children that were not taken."""
        for child in self.children:
            child.end()
        self.region.close()


def wait_for_replies(children: Iterable[Child], timeout_s: float, *, spin: bool = False) -> list[Child]:
    """Wait until some children have replied or ended; spin: poll for a moment first, if a core is free."""
    by_pipes = {child.pipes: child for child in children}
    return [by_pipes[pipes] for pipes in wait_for_pipes(list(by_pipes), timeout_s, spin)]


def describe_code(code: int) -> str:
    """Describe an exit code: `was killed by SIGSEGV`, `ended with code 3`."""
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class ProcessTree:
    """A process and its descendants at the time of the call. Processes that reuse their pids later are not
    mistaken for them."""

    def __init__(self, pid: int, *, only_below: bool = False) -> None:
        import psutil

        self._processes: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(pid)
            self._processes = top.children(recursive=True) + ([] if only_below else [top])

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def read_cpu_s(self) -> float:
        """Return the CPU seconds of the processes that still exist."""
        return self._sum(lambda process: sum(process.cpu_times()[:2]))

    def read_bytes(self) -> int:
        """Return the memory of the processes that still exist; shared memory counts once if PSS is known."""
        return int(
            self._sum(lambda process: getattr(process.memory_full_info(), "pss", process.memory_info().rss))
        )

    def end(self) -> None:
        """Kill the processes that still exist."""
        self._sum(lambda process: process.kill() or 0.0)

    def _sum(self, read: Callable[[Any], float]) -> float:
        import psutil

        total = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                total += read(process)
        return total


def dump_object(target: Any) -> bytes:
    """Pickle a user's callable, or an object that holds one, for a child: by import path, or else by value.

    Plain pickle suffices if everything has an import path. But it treats `__main__` like any other module,
    and it ignores modules that the user registered with cloudpickle to be sent by value.
    """
    if "cloudpickle" not in sys.modules:  # importing it takes 10 ms
        with contextlib.suppress(Exception):  # border: the user's objects
            plain = pickle.dumps(target, pickle.HIGHEST_PROTOCOL)
            if b"__main__" not in plain:
                return plain
    import cloudpickle  # type: ignore[import-untyped]

    try:
        return bytes(cloudpickle.dumps(target))
    except Exception as error:  # border: the user's objects
        raise UsageError(
            f"the environment's callable can't be sent to a worker ({describe(error)}); give "
            "module:callable, or use the serial backend [--vector serial]"
        ) from error


class BoundedLog:
    """Output of children in a file that stops growing at `cap_bytes`; without a path it is discarded."""

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
