"""The parent's pipes to a child; every wait has a deadline.

If the system can poll pipes, they are read and written when they are ready. Otherwise (Windows) each child
has a thread that reads and a thread that writes. `make_pipes` chooses; `wait_for_pipes` waits for either
kind.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue

CAN_POLL = hasattr(select, "poll")
SPIN_S = 30e-6
_CHUNK = 1 << 16  # capacity of a pipe; a larger block would be mapped and unmapped at every read


class PolledPipes:
    """Pipes that are polled."""

    def __init__(self, write_fd: int, read_fd: int) -> None:
        self.write_fd, self.read_fd = write_fd, read_fd
        os.set_blocking(write_fd, False)
        os.set_blocking(read_fd, False)

    def write(self, data: bytes, timeout_s: float) -> bool:
        """Write all data; False if the child did not read it in time. OSError if the child is gone."""
        view = memoryview(data)
        deadline = time.monotonic() + timeout_s
        while view:
            try:
                view = view[os.write(self.write_fd, view) :]
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left < 0:
                    return False
                poll = select.poll()
                poll.register(self.write_fd, select.POLLOUT)
                poll.poll(1000 * left)
        return True

    def read(self) -> tuple[bytes, bool]:
        """Return the data that has arrived, and whether the child has closed its end."""
        parts: list[bytes] = []
        while True:
            try:
                part = os.read(self.read_fd, _CHUNK)
            except BlockingIOError:
                return b"".join(parts), False
            if not part:
                return b"".join(parts), True
            parts.append(part)
            if len(part) < _CHUNK:
                return b"".join(parts), False

    def close(self) -> None:
        """Forget the descriptors: the process object closes them, and their numbers are reused."""
        self.write_fd = self.read_fd = -1


class ThreadedPipes:
    """Pipes with a thread each."""

    arrived = threading.Condition()  # shared by all children, because one wait is for many

    def __init__(self, write_fd: int, read_fd: int) -> None:
        self._parts: list[bytes] = []
        self._ended = False
        self._to_write: SimpleQueue[bytes | None] = SimpleQueue()
        self._gone = False
        # Each thread has its own descriptor, so that it is not closed while the thread waits.
        threading.Thread(target=self._serve_reading, args=(os.dup(read_fd),), daemon=True).start()
        threading.Thread(target=self._serve_writing, args=(os.dup(write_fd),), daemon=True).start()

    @property
    def is_ready(self) -> bool:
        return bool(self._parts) or self._ended

    def write(self, data: bytes, timeout_s: float) -> bool:
        """Pass data to the writing thread; a child that reads nothing is noticed because it does not
        reply."""
        if self._gone:
            raise OSError("the child is gone")
        self._to_write.put(data)
        return True

    def read(self) -> tuple[bytes, bool]:
        """Return the data that has arrived, and whether the child has closed its end."""
        with self.arrived:
            parts, self._parts = self._parts, []
            return b"".join(parts), self._ended

    def close(self) -> None:
        """End the writing thread."""
        self._to_write.put(None)

    def _serve_writing(self, fd: int) -> None:
        with contextlib.suppress(OSError), open(fd, "wb", buffering=0) as pipe:
            while (data := self._to_write.get()) is not None:
                view = memoryview(data)
                while view:
                    view = view[pipe.write(view) :]
        self._gone = True

    def _serve_reading(self, fd: int) -> None:
        with contextlib.suppress(OSError), open(fd, "rb", buffering=0) as pipe:
            while part := pipe.read(_CHUNK):
                with self.arrived:
                    self._parts.append(part)
                    self.arrived.notify_all()
        with self.arrived:
            self._ended = True
            self.arrived.notify_all()


Pipes = PolledPipes | ThreadedPipes


def make_pipes(write_fd: int, read_fd: int) -> Pipes:
    """Make the kind of pipes that this system supports."""
    return PolledPipes(write_fd, read_fd) if CAN_POLL else ThreadedPipes(write_fd, read_fd)


def wait_for_pipes(pipes: Sequence[Pipes], timeout_s: float, spin: bool) -> list[Pipes]:
    """Wait until some are readable or closed; spin: poll for a moment first, if a core is free."""
    by_fd = {pipe.read_fd: pipe for pipe in pipes if isinstance(pipe, PolledPipes)}
    if len(by_fd) < len(pipes):
        threaded = [pipe for pipe in pipes if isinstance(pipe, ThreadedPipes)]
        with ThreadedPipes.arrived:
            ThreadedPipes.arrived.wait_for(lambda: any(pipe.is_ready for pipe in threaded), timeout_s)
            return [pipe for pipe in threaded if pipe.is_ready]
    poll = select.poll()
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    if spin:
        end = time.perf_counter() + SPIN_S
        while time.perf_counter() < end:
            if ready := poll.poll(0):
                return [by_fd[fd] for fd, _ in ready]
    return [by_fd[fd] for fd, _ in poll.poll(timeout_s * 1000)]
