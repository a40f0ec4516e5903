"""Child processes from the outside: started, spoken to, watched and ended."""

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

from mission_gym.errors import UsageError, WorkerDied, WorkerError, WorkerTimeout, describe
from mission_gym.procs.inside import HEADER, STACK_SIGNAL
from mission_gym.procs.memory import Region
from mission_gym.procs.pipes import Pipes, make_pipes, wait_for_pipes
from mission_gym.procs.start import start_process

_TAIL_BYTES = 16_384
_LOOK_S = 0.25  # how soon the end of a child shows whose pipe is held open
_END_S = 5.0  # for a keeper to end all that its worker started
_HAS_KEEPER = hasattr(os, "fork")
LATER: Any = object()


class Child:
    """The parent's end of one child process. setup: LATER if `begin` gives it."""

    def __init__(
        self, target: str, setup: Any, *, regions: Sequence[Region] = (), on_output: Callable[[bytes], None]
    ) -> None:
        self._regions = regions
        handles = [region.handle for region in regions if isinstance(region.handle, int)]
        self._process = start_process(target, handles)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid  # until the child tells its own, which its keeper precedes
        self._has_told_pid = False
        self.pipes: Pipes = make_pipes(self._process.stdin.fileno(), self._process.stdout.fileno())
        self._buffer = bytearray()
        self._tail: deque[bytes] = deque()
        self._on_output = on_output
        self._drain = threading.Thread(target=self._read_output, name=f"output of {self.pid}", daemon=True)
        self._drain.start()
        if setup is not LATER:
            self.begin(setup)

    def begin(self, setup: Any) -> None:
        """Tell a child that was started without its setup what to do."""
        with contextlib.suppress(WorkerError):  # one that died at once is met by the first recv
            self.send((setup, [(region.size, region.handle) for region in self._regions]))

    def send(self, message: Any, timeout_s: float = 30.0) -> None:
        """Hand over a command; WorkerDied or WorkerTimeout if the child does not take it."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            if not self.pipes.write(HEADER.pack(len(data)) + data, timeout_s):
                raise WorkerTimeout(f"the worker took no command for {timeout_s:.0f} s")
        except OSError as error:
            raise WorkerDied(f"the worker process {self.pid} {self.describe_end()}") from error

    def take(self) -> list[Any]:
        """Return the replies that have come; WorkerDied at the end of the child."""
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
        if replies and not self._has_told_pid:
            self.pid, self._has_told_pid = replies.pop(0), True
        if ended and not replies:
            raise WorkerDied(f"the worker process {self.pid} {self.describe_end()}")
        return replies

    def wait(self, timeout_s: float) -> list[Any]:
        """The next replies, none if the time ran out; WorkerDied at the end of the child."""
        end = time.monotonic() + timeout_s
        while True:
            gone, left_s = self.is_gone(), max(0.0, end - time.monotonic())
            if wait_for_replies([self], min(left_s, _LOOK_S)) and (replies := self.take()):
                return replies
            if gone:  # looked at before the pipe was: what it said last has been read
                raise WorkerDied(f"the worker process {self.pid} {self.describe_end()}")
            if not left_s:
                return []

    def is_gone(self) -> bool:
        """Whether the process has ended; its pipe may be held open by its own children."""
        return self._process.poll() is not None

    def describe_end(self) -> str:
        """How the process ended: `was killed by SIGSEGV`, `ended with code 3`."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        return describe_code(code)

    def was_killed(self) -> bool:
        """Whether a signal ended the process; one that runs was not."""
        return (self._process.poll() or 0) < 0

    def read_stack(self) -> str:
        """Ask a hung child for the Python stacks of its threads, and return them."""
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

    def end(self, grace_s: float = 0.0) -> None:
        """End the child and all it started; grace_s: to end by itself, once nothing more is sent."""
        self.pipes.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if grace_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        if not _HAS_KEEPER:
            ProcessTree(self.pid).end()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # something can't be killed, or the keeper was stopped
            self._process.kill()
            self._process.wait()
        self._drain.join(2.0)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None and not (pipe is self._process.stderr and self._drain.is_alive()):
                pipe.close()

    def _read_output(self) -> None:
        assert self._process.stderr is not None
        fd = self._process.stderr.fileno()
        while chunk := os.read(fd, 1 << 16):
            self._tail.append(chunk[-_TAIL_BYTES:])
            while sum(map(len, self._tail)) - len(self._tail[0]) > _TAIL_BYTES:
                self._tail.popleft()
            self._on_output(chunk)


class Spares:
    """Children that start while it is found out what they are to do, and their memory, which has no size yet.

    Whoever takes a child from the list ends it; whoever takes the last one closes the memory.
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
        """End those that nobody has taken."""
        for child in self.children:
            child.end()
        self.region.close()


def wait_for_replies(children: Iterable[Child], timeout_s: float, *, spin: bool = False) -> list[Child]:
    """Wait until some of the children have replied or ended; spin first where a core is free for it."""
    by_pipes = {child.pipes: child for child in children}
    return [by_pipes[pipes] for pipes in wait_for_pipes(list(by_pipes), timeout_s, spin)]


def describe_code(code: int) -> str:
    """How a process ended, by its code: `was killed by SIGSEGV`, `ended with code 3`."""
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class ProcessTree:
    """A process and what it has started by now. They are known again when it is gone, and never mistaken for
    others that got their numbers."""

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
        """CPU seconds of those that are there."""
        return self._sum(lambda process: sum(process.cpu_times()[:2]))

    def read_bytes(self) -> int:
        """Memory of those that are there, each with its part of what they share where the system tells."""
        return int(
            self._sum(lambda process: getattr(process.memory_full_info(), "pss", process.memory_info().rss))
        )

    def _sum(self, read: Callable[[Any], float]) -> float:
        import psutil

        total = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                total += read(process)
        return total

    def end(self) -> None:
        """Kill what is left of them."""
        import psutil

        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                process.kill()


def dump_object(target: Any) -> bytes:
    """A callable of the user's, or what holds one, for a child: by import path, else by value.

    Plain pickle does for what has a path; but it takes `__main__` for a module like any other, and does not
    know what the user told cloudpickle to send by value.
    """
    if "cloudpickle" not in sys.modules:  # to load it takes 10 ms
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
