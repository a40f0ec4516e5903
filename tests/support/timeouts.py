"""How long tests wait.

A wait for what must happen ends with its event, so it may be long: `LONG_S`. A limit that is meant to strike
(a hang) is waited out, so it is short on a quiet machine; but healthy processes must keep it on a busy one,
so it grows there: `scale_timeout(seconds)`.
"""

import os
import time
from collections.abc import Callable

import psutil

LONG_S = 300.0
_SPIN_S, _FRESH_S = 0.02, 2.0
_last = (-_FRESH_S, 1.0)  # when the slowness was measured, and what it was


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for what must come."""
    end = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs: it may end at any moment, and one that nobody waited for has ended, too."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def scale_timeout(seconds: float) -> float:
    """What a limit of `seconds` on a quiet machine should be here and now."""
    global _last
    if time.monotonic() - _last[0] > _FRESH_S:
        _last = (time.monotonic(), _measure_slowness())
    return seconds * _last[1]


def _measure_slowness() -> float:
    """Seconds that pass while this process gets one of a core, or the load of each core; 1 if quiet."""
    wall, work = time.perf_counter(), time.process_time()
    while time.process_time() - work < _SPIN_S:
        pass
    ratio = (time.perf_counter() - wall) / _SPIN_S
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1.0, ratio, load / (os.cpu_count() or 1))
