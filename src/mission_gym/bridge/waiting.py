"""Waiting for an answer: awake where it comes soon and nobody else wants the core, asleep otherwise.

A process that slept goes on late, and with cold caches.
"""

from __future__ import annotations

import time

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from mission_gym.procs.pipes import Pipes, PolledPipes, wait_for_pipes

_SOON_S = 2e-3  # what sleep costs matters less behind that
_RESTS = (2, 1000)  # messages, after the core was taken from this thread: twice as many each time in a row
_THREAD = getattr(resource, "RUSAGE_THREAD", None)  # of Linux


class Watch:
    """How to wait for the answers of one process."""

    def __init__(self) -> None:
        self._left = 0  # messages until it is tried to stay awake
        self._rest = _RESTS[0]

    def wait(self, pipes: Pipes, timeout_s: float) -> bool:
        """Wait until something can be read; False if nothing came in time."""
        begun = time.perf_counter()
        if self._left > 0 or _THREAD is None or not isinstance(pipes, PolledPipes):
            self._left -= 1
        else:
            taken = _count_taken()
            came = self._stay_awake(pipes, begun + min(_SOON_S, timeout_s))
            least, most = _RESTS
            if _count_taken() > taken:
                self._left, self._rest = self._rest, min(2 * self._rest, most)
            else:
                self._rest = max(self._rest // 2, least)
            if came:
                return True
        came = bool(wait_for_pipes([pipes], max(timeout_s - (time.perf_counter() - begun), 0.0), spin=False))
        if time.perf_counter() - begun > _SOON_S:
            self._left = max(self._left, 1)
        return came

    def _stay_awake(self, pipes: PolledPipes, until: float) -> bool:
        while time.perf_counter() < until:
            if wait_for_pipes([pipes], 0.0, spin=False):
                return True
        return False


def _count_taken() -> int:
    """How often this thread lost the core to another one."""
    return 0 if _THREAD is None else resource.getrusage(_THREAD).ru_nivcsw
