"""A child process from the inside: its pipes, its main function, and how it ends."""

from __future__ import annotations

import faulthandler
import importlib
import io
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, NoReturn

from mission_gym.errors import WorkerError, describe
from mission_gym.procs import pipes
from mission_gym.procs.memory import Region

HEADER = struct.Struct("<I")  # of a frame: its length
_GRACE_S = 0.5  # an orderly end comes first
_EVERYWHERE = {"mission_gym", "gymnasium", "numpy", *sys.stdlib_module_names}
STACK_SIGNAL = getattr(signal, "SIGUSR2", None)


class Link:
    """The child's end: commands in, replies out. Several threads may reply."""

    def __init__(self, read_fd: int, write_fd: int, regions: list[Region]) -> None:
        self.regions = regions
        self._read_fd, self._write_fd = read_fd, write_fd
        self._lock = threading.Lock()
        self._poll: select.poll | None = None
        self._frames: SimpleQueue[bytes] = SimpleQueue()  # without polling; an empty one is the end
        if pipes.CAN_POLL:
            self._poll = select.poll()
            self._poll.register(read_fd, select.POLLIN)
        else:
            threading.Thread(target=self._serve_reading, daemon=True).start()

    def recv(self, spin: bool = False) -> Any:
        """Wait for the next command; EOFError when the parent is gone."""
        if self._poll is None:
            frame = self._frames.get()
            if not frame:
                self._frames.put(frame)
                raise EOFError
            return pickle.loads(frame)
        if spin:
            end = time.perf_counter() + pipes.SPIN_S
            while time.perf_counter() < end and not self._poll.poll(0):
                pass
        return pickle.loads(self._read_frame())

    def send(self, reply: Any) -> None:
        """Hand over a reply."""
        try:
            data = pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError):  # classes that came by value go back so
            import cloudpickle  # type: ignore[import-untyped]

            data = cloudpickle.dumps(reply)
        view = memoryview(HEADER.pack(len(data)) + data)
        with self._lock:
            while view:
                view = view[os.write(self._write_fd, view) :]

    def _serve_reading(self) -> None:
        try:
            while True:
                self._frames.put(self._read_frame())
        except (EOFError, OSError):
            self._frames.put(b"")
            if not hasattr(os, "fork"):  # without a keeper: the parent is gone, and we may hang
                time.sleep(_GRACE_S)
                os._exit(0)

    def _read_frame(self) -> bytes:
        (length,) = HEADER.unpack(self._read(HEADER.size))
        return self._read(length)

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = os.read(self._read_fd, count)
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def child_main(target: str, fds: Sequence[int] = ()) -> NoReturn:
    """What a child runs: its pipes go out of the environment's reach, then `module:callable(link, setup)`.

    fds: of shared memory, where they are not those of the parent.
    """
    read_fd, write_fd = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what environments print goes to the log
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, all_threads=True)
    link = Link(read_fd, write_fd, [])
    try:
        link.send(os.getpid())
        module, _, name = target.partition(":")
        run = getattr(importlib.import_module(module), name)
        setup, regions = link.recv()
        handles = fds or [handle for _, handle in regions]
        link.regions = [Region(size, handle) for (size, _), handle in zip(regions, handles, strict=True)]
        run(link, setup)
    except EOFError:
        pass
    except Exception:  # noqa: BLE001  border: worker main
        end_broken()
    except BaseException as error:  # noqa: BLE001  nobody interrupts a worker but its environment
        sys.stderr.write(f"the environment raised {describe(error)}\n")
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # threads of environments must not hold the process


def end_broken() -> NoReturn:
    """End this process over the error that is being handled, whose traceback is its last words."""
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


def describe_error(error: BaseException) -> tuple[BaseException, str]:
    """An error in a form that crosses processes, with its traceback as text. One that needs code of the
    user's to be read again becomes a WorkerError of the same words: that code has no place over there."""
    text = "".join(traceback.format_exception(error.__cause__ or error))
    try:
        str(_Plain(io.BytesIO(pickle.dumps(error))).load())
    except Exception:  # noqa: BLE001  border: the user's exception classes
        return WorkerError(describe(error)), text
    return error, text


class _Plain(pickle.Unpickler):
    """Reads what the other process can read without loading code that it does not have."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _EVERYWHERE:
            raise pickle.UnpicklingError(f"{module} is not loaded everywhere")
        return super().find_class(module, name)
