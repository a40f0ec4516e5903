"""The process that children are forked from: it imports what they run once, for all of them (Linux).

In: a request for each child, which is its target and the descriptors it gets. Out: a keeper for each and
below it the worker, which begins where an interpreter of its own would be after its imports. The modules of
targets are imported here, never what belongs to an environment. Where one of them has started a thread,
forking on would not be safe: children are then interpreters of their own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from mission_gym.procs import subreaper
from mission_gym.procs.inside import STACK_SIGNAL, child_main
from mission_gym.procs.start import MAX_FDS, make_script

_MAX_BYTES = 4096  # of a target


def serve_template(fd: int, parent: int) -> NoReturn:
    """Fork what is asked for at this end of a socket, until the parent is gone or lets go of the other."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps keepers; they tell their ends themselves
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, all_threads=True)
    requests = socket.socket(fileno=fd)
    ends, look_s = subreaper.find_ends(parent)
    while True:
        ready, _, _ = select.select([fd, *ends], [], [], look_s)
        if os.getppid() != parent:
            os._exit(0)
        if fd not in ready:
            continue
        asked, fds, _, _ = socket.recv_fds(requests, _MAX_BYTES, MAX_FDS)
        if not asked:
            os._exit(0)
        target = asked.decode()
        for standard, pipe in enumerate(fds[:3]):  # what an import prints is the child's output
            os.dup2(pipe, standard)
            os.close(pipe)
        with contextlib.suppress(BaseException):  # the child meets it again, and ends over it
            importlib.import_module(target.partition(":")[0])
        if not fds:  # asked for before there is a child
            continue
        leash, *regions = fds[3:]
        gc.freeze()  # else the first collection of each child copies every page
        is_alone = len(os.listdir("/proc/self/task")) == 1
        if not os.fork():
            for end in (requests.detach(), *ends):
                os.close(end)
            _become_child(target, parent, leash, regions, is_alone)
        with open(os.devnull, "r+b", buffering=0) as nothing:
            for standard in range(3):
                os.dup2(nothing.fileno(), standard)
        for given in (leash, *regions):
            os.close(given)


def _become_child(target: str, parent: int, leash: int, regions: list[int], is_alone: bool) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    if not is_alone:
        script = make_script(target, sys.path, parent, leash, regions)
        os.execv(sys.executable, [sys.executable, "-c", script])
    subreaper.keep(parent, leash)
    if "numpy.random" in sys.modules:  # else siblings draw the same; Python's own generator sees to itself
        sys.modules["numpy.random"].seed()
    child_main(target, regions)
