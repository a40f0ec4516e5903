"""The process between this one and a worker: nothing that the worker started outlives it.

A child forks before it imports anything: one half becomes the worker, the other keeps it. What loses its
parent below the keeper becomes the keeper's own (Linux), in whatever session and environment it is. So when
the worker ends, or the process that started it is gone, even by `kill -9`, the keeper kills all that is left
and ends as the worker did. The worker of a keeper that was killed is killed by the system.
It runs as text in a bare interpreter, so that it is small: the standard library, and psutil at the end.
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

_GRACE_S = 0.5  # an orderly end is the worker's own
_LOOK_S = 0.25  # how soon the end of the parent shows where the system does not tell it
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # of Linux's prctl
TOLD = struct.Struct("<i")  # what a keeper tells at its leash


def keep(parent: int, leash: int = -1, folder: str = "") -> None:
    """Fork: the worker returns from here, its keeper never does.

    parent: the process for which the worker works. leash: a socket to it, where somebody else has forked us:
    the keeper tells there which process it is, and in the end the worker's code. folder: removed in the end.
    """
    keeper = os.getpid()
    _prctl(_SUBREAPER, 1)
    worker = os.fork()
    if worker:
        _watch(worker, parent, leash, folder)
    if leash >= 0:
        os.close(leash)
    os.setsid()
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes  # the parent reads this module, too, and has no use for it

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def find_ends(parent: int) -> tuple[list[int], float | None]:
    """What can be read when a process has ended, and how often to look where the system does not tell."""
    with suppress(AttributeError, OSError):
        return [os.pidfd_open(parent)], None
    return [], _LOOK_S


def _watch(worker: int, parent: int, leash: int, folder: str) -> NoReturn:
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for fd in (0, 1, 2):  # the pipes are the worker's
            os.dup2(nothing.fileno(), fd)
    woken, wake = os.pipe()
    for fd in (woken, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    ends, look_s = find_ends(parent)
    if leash >= 0:
        ends.append(leash)
        _tell(leash, os.getpid())
    is_gone = False
    while (status := _reap(worker)) is None and not asked and not is_gone:
        ready, _, _ = select.select([woken, *ends], [], [], look_s)
        with suppress(BlockingIOError):
            os.read(woken, 1024)
        with suppress(OSError):  # the parent died, and had not read all that we told
            if leash in ready and os.read(leash, 1):
                asked.append(signal.SIGTERM)
        is_gone = any(end in ready for end in ends) or (leash < 0 and os.getppid() != parent)
    end = time.monotonic() + _GRACE_S
    while status is None and not asked and time.monotonic() < end:
        time.sleep(0.02)
        status = _reap(worker)
    _end_all(worker)
    if folder:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    if leash < 0:
        _end_like(code)
    _tell(leash, code)
    os._exit(0)


def _tell(leash: int, number: int) -> None:
    with suppress(OSError):  # the parent is gone
        os.write(leash, TOLD.pack(number))


def _reap(worker: int) -> int | None:
    """How the worker ended, if it has; what was left to us and has ended is reaped on the way."""
    status = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                status = ended[1]
    return status


def _end_all(worker: int) -> None:
    """Kill all that descends from here, until nothing is left: what those had started comes to us."""
    if sys.platform != "linux":  # it does not come; what is in the worker's own group can be had
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


def _end_like(code: int) -> NoReturn:
    """End with the code, or by the signal, that ended the worker."""
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
