"""Child processes from the child's side: the link to the parent, the main function, and the end."""

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

HEADER = struct.Struct("<I")  # length of a frame
_GRACE_S = 0.5  # for an orderly end
_IN_EVERY_PROCESS = {"mission_gym", "gymnasium", "numpy", *sys.stdlib_module_names}
STACK_SIGNAL = getattr(signal, "SIGUSR2", None)


class Link:
    """The child's end: receives commands and sends replies. Several threads may send."""

    def __init__(self, read_fd: int, write_fd: int, regions: list[Region]) -> None:
        self.regions = regions
        self._read_fd, self._write_fd = read_fd, write_fd
        self._lock = threading.Lock()
        self._poll: select.poll | None = None
        self._frames: SimpleQueue[bytes] = SimpleQueue()  # used without polling; an empty frame is the end
        if pipes.CAN_POLL:
            self._poll = select.poll()
            self._poll.register(read_fd, select.POLLIN)
        else:
            threading.Thread(target=self._serve_reading, daemon=True).start()

    def recv(self, spin: bool = False) -> Any:
        """Wait for the next command; EOFError when the parent is gone. spin: poll for a moment first."""
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
        """Send a reply."""
        try:
            data = pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError):  # classes that arrived by value
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
            if not hasattr(os, "fork"):  # no subreaper ends us when the parent is gone, and we may hang
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


def child_main(target: str, path: Sequence[str], fds: Sequence[int] = ()) -> NoReturn:
    """The main function of a child: hide its pipes from the environment, run `module:callable(link, setup)`.

    path: the import path for everything after `module`, so that files of the user's folder can't replace
    modules that we need. fds: descriptors of shared memory, if they differ from the parent's.
    """
    read_fd, write_fd = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # output of environments goes to the log
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, all_threads=True)
    link = Link(read_fd, write_fd, [])
    try:
        link.send(os.getpid())
        module, _, name = target.partition(":")
        run = getattr(importlib.import_module(module), name)
        sys.path[:] = path
        setup, regions = link.recv()
        handles = fds or [handle for _, handle in regions]
        link.regions = [Region(size, handle) for (size, _), handle in zip(regions, handles, strict=True)]
        run(link, setup)
    except EOFError:
        pass
    except Exception:  # noqa: BLE001  border: worker main
        exit_with_traceback()
    except BaseException as error:  # noqa: BLE001  only the environment can raise these in a worker
        sys.stderr.write(f"the environment raised {describe(error)}\n")
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # threads of environments must not keep the process alive


def exit_with_traceback() -> NoReturn:
    """End this process because of the error that is being handled; its traceback is the last output."""
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


def describe_error(error: BaseException) -> tuple[BaseException, str]:
    """Return an error in a form that another process can unpickle, and its traceback as text.

    An error that needs the user's code to be unpickled becomes a WorkerError with the same message, because
    the other process must not load that code.
    """
    text = "".join(traceback.format_exception(error.__cause__ or error))
    try:
        str(_SafeUnpickler(io.BytesIO(pickle.dumps(error))).load())
    except Exception:  # noqa: BLE001  border: the user's exception classes
        return WorkerError(describe(error)), text
    return error, text


class _SafeUnpickler(pickle.Unpickler):
    """Refuses classes of modules that are not loaded in every process."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _IN_EVERY_PROCESS:
            raise pickle.UnpicklingError(f"{module} is not loaded in every process")
        return super().find_class(module, name)
