"""The process that children are forked from: it imports the code that they run once for all (Linux).

In: one request per child with its target and its descriptors. Out: a subreaper and below it the worker, which
starts where a new interpreter would be after its imports. Only modules of targets are imported here, never
code of an environment. If such a module has started a thread, forking is not safe: the children of this
process are then new interpreters.
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
from mission_gym.procs.link import STACK_SIGNAL, child_main
from mission_gym.procs.start import MAX_FDS, make_script

_MAX_BYTES = 4096  # of a target


def serve_forks(fd: int, parent: int, path: list[str]) -> NoReturn:
    """Fork a child for each request on a socket, until the parent is gone or closes its end. path: the import
    path of the children, after the import of their target."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps subreapers; they report ends themselves
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, all_threads=True)
    requests = socket.socket(fileno=fd)
    ends, poll_s = subreaper.open_pidfd(parent)
    while True:
        ready, _, _ = select.select([fd, *ends], [], [], poll_s)
        if os.getppid() != parent:
            os._exit(0)
        if fd not in ready:
            continue
        request, fds, _, _ = socket.recv_fds(requests, _MAX_BYTES, MAX_FDS)
        if not request:
            os._exit(0)
        target = request.decode()
        for standard, pipe in enumerate(fds[:3]):  # output of an import is output of the child
            os.dup2(pipe, standard)
            os.close(pipe)
        with contextlib.suppress(BaseException):  # the child fails the same way, and reports it
            importlib.import_module(target.partition(":")[0])
        if not fds:  # a request to import, before there is a child
            continue
        control, *regions = fds[3:]
        gc.freeze()  # otherwise each child's first collection copies every page
        is_single_threaded = len(os.listdir("/proc/self/task")) == 1
        try:
            is_child = not os.fork()
        except OSError as error:
            subreaper.report(control, -(error.errno or 1))
            is_child = False
        if is_child:
            for end in (requests.detach(), *ends):
                os.close(end)
            _become_child(target, path, parent, control, regions, is_single_threaded)
        with open(os.devnull, "r+b", buffering=0) as nothing:
            for standard in range(3):
                os.dup2(nothing.fileno(), standard)
        for given in (control, *regions):
            os.close(given)


def _become_child(
    target: str, path: list[str], parent: int, control: int, regions: list[int], is_single_threaded: bool
) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    if not is_single_threaded:
        script = make_script(target, sys.path, path, parent, control, regions)
        os.execv(sys.executable, [sys.executable, "-c", script])
    subreaper.fork_below_subreaper(parent, control)
    if "numpy.random" in sys.modules:  # or siblings draw the same numbers; Python's own generator reseeds
        sys.modules["numpy.random"].seed()
    child_main(target, path, regions)
