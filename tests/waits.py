"""How long a test waits for what should happen: in seconds of a quiet machine, longer on a busy one.

A wait ends with its event; its length matters only where something has gone wrong, or is meant to. So a wait
for what happens may be long. Where a limit must strike (a hang), it still has to be long enough for healthy
processes that share the cores: those use `patience`, too.
"""

import os
import time


def _measure_slowness() -> float:
    """Wall time for each second of work of this process now, and what the load says; 1 if quiet."""
    wall, work = time.perf_counter(), time.process_time()
    while time.process_time() - work < 0.02:
        pass
    ratio = (time.perf_counter() - wall) / 0.02
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1.0, ratio, load / (os.cpu_count() or 1))


def patience(seconds: float) -> float:
    """The seconds that a wait of `seconds` on a quiet machine should have here and now."""
    return seconds * _measure_slowness()
