"""The process between us and a worker: nothing that the worker starts outlives it.

A child forks before it imports anything. One half becomes the worker, the other one its subreaper. On Linux a
process below the subreaper that loses its parent becomes a child of the subreaper, whatever its session and
environment. When the worker ends, or when the process that started it is gone, even by `kill -9`, the
subreaper kills everything that is left and ends like the worker did. If the subreaper is killed, the system
kills the worker. This file runs as text in a bare interpreter, to stay small: it needs the standard library,
and psutil at the end.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from typing import NoReturn

_GRACE_S = 0.5  # for the worker to end by itself
_POLL_S = 0.25  # between looks at the parent if the system does not report its end
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # of Linux's prctl
# Messages on the control socket: a pid, then an exit code; or only -errno, if there could be no process.
NUMBER = struct.Struct("<i")


def fork_below_subreaper(parent: int, control: int = -1, folder: str = "") -> None:
    """Fork: the worker returns from here, its subreaper never does.

    parent: the process for which the worker works. control: a socket to it, if another process has forked us;
    the subreaper sends its pid there and finally the worker's exit code. folder: is removed at the end.
    """
    subreaper = os.getpid()
    _prctl(_SUBREAPER, 1)
    try:
        worker = os.fork()
    except OSError as error:
        if control < 0:
            raise
        report(control, -(error.errno or 1))
        os._exit(1)
    if worker:
        _watch(worker, parent, control, folder)
    if control >= 0:
        os.close(control)
    os.setsid()
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != subreaper:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes  # the parent imports this module too, and does not need ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def open_pidfd(pid: int) -> tuple[list[int], float | None]:
    """Return descriptors that become readable when a process ends, and the timeout for polling without
    one."""
    with suppress(AttributeError, OSError):
        return [os.pidfd_open(pid)], None
    return [], _POLL_S


def _watch(worker: int, parent: int, control: int, folder: str) -> NoReturn:
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for fd in (0, 1, 2):  # the pipes belong to the worker
            os.dup2(nothing.fileno(), fd)
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    asked: list[int] = []  # requests to end
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    ends, poll_s = open_pidfd(parent)
    if control >= 0:
        ends.append(control)
        report(control, os.getpid())
    is_gone = False
    while (status := _reap(worker)) is None and not asked and not is_gone:
        ready, _, _ = select.select([woken, *ends], [], [], poll_s)
        with suppress(BlockingIOError):
            os.read(woken, 1024)
        with suppress(OSError):  # the parent died without reading all our messages
            if control in ready and os.read(control, 1):
                asked.append(signal.SIGTERM)
        is_gone = any(end in ready for end in ends) or (control < 0 and os.getppid() != parent)
    end = time.monotonic() + _GRACE_S
    while status is None and not asked and time.monotonic() < end:
        time.sleep(0.02)
        status = _reap(worker)
    _kill_descendants(worker)
    if folder:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    if control < 0:
        _exit_like(code)
    report(control, code)
    os._exit(0)


def report(control: int, number: int) -> None:
    """Send a message on the control socket."""
    with suppress(OSError):  # the parent is gone
        os.write(control, NUMBER.pack(number))


def _reap(worker: int) -> int | None:
    """Reap all children that have ended; return the worker's wait status if it is one of them."""
    status = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                status = ended[1]
    return status


def _kill_descendants(worker: int) -> None:
    """Kill all our descendants until none is left; their orphans become our children."""
    if sys.platform != "linux":  # there they do not: only the worker's process group can be reached
        with suppress(OSError):
            os.killpg(worker, signal.SIGKILL)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        import psutil

        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
        os.waitpid(-1, 0)


def _exit_like(code: int) -> NoReturn:
    """Exit with the worker's exit code, or by the signal that ended it."""
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
