"""Counters of environments that are stepped side by side, in shared memory: how long steps take, how many are
under way, who holds up the others.

int64 [B, NUM_GAUGES], a row for each environment with one writer; whoever reads takes differences.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mission_gym.data import Array

NUM_STEPS, LATENCY_NS = 0, 1
NUM_FAILED = 2  # steps that raised, or were broken off
HELD_SINCE = 3  # time.monotonic_ns at which its code began its turn at the event loop, 0 between turns
HELD_NS = 4  # of all its turns
BLOCKED_NS = 5  # of those in which the processor idled
_FIRST_BUCKET, _NUM_BUCKETS = 6, 24  # steps by their latency: below 65 us, then twice as long each
_SHIFT = 16
NUM_GAUGES = 32


class Waiting(NamedTuple):
    """What the gauges tell of some time."""

    in_flight: float  # steps under way, on average
    latency_s: float  # of a step, the mean
    latency_p95_s: float
    error_rate: float  # share of the steps that failed
    blocked: float  # share of the time in which an environment blocked an event loop without computing
    blocked_env: int  # the one that did so most

    def metrics(self) -> dict[str, float]:
        """As a row of metrics has it."""
        told = {
            "time/in_flight": self.in_flight,
            "time/step_latency_s": self.latency_s,
            "time/step_latency_p95_s": self.latency_p95_s,
            "time/step_error_rate": self.error_rate,
        }
        if self.blocked:
            told |= {"time/loop_blocked": self.blocked, "time/loop_blocked_env": float(self.blocked_env)}
        return told


def count_step(gauges: memoryview, latency_ns: int) -> None:
    """Count a step in the row of its environment."""
    gauges[NUM_STEPS] += 1
    gauges[LATENCY_NS] += latency_ns
    gauges[_FIRST_BUCKET + min((latency_ns >> _SHIFT).bit_length(), _NUM_BUCKETS - 1)] += 1


class GaugeReader:
    """Tells what the gauges counted since it was asked before."""

    def __init__(self, gauges: Array) -> None:
        self._gauges, self._before = gauges, gauges.copy()

    def read(self, seconds: float) -> Waiting | None:
        """What was counted, over so many seconds of stepping; None where no step was."""
        now = self._gauges.copy()
        made, self._before = now - self._before, now
        steps, failed = (int(made[:, column].sum()) for column in (NUM_STEPS, NUM_FAILED))
        if not steps or seconds <= 0:
            return None
        latency_s, blocked = 1e-9 * float(made[:, LATENCY_NS].sum()), made[:, BLOCKED_NS]
        return Waiting(
            in_flight=latency_s / seconds,
            latency_s=latency_s / steps,
            latency_p95_s=_find_quantile(made[:, _FIRST_BUCKET : _FIRST_BUCKET + _NUM_BUCKETS].sum(0), 0.95),
            error_rate=failed / (steps + failed),
            blocked=min(1e-9 * float(blocked.sum()) / seconds, 1.0),
            blocked_env=int(blocked.argmax()),
        )


def _find_quantile(counts: Array, share: float) -> float:
    """Seconds, as if the steps of a bucket lay evenly in it."""
    above = np.cumsum(counts)
    wanted = share * above[-1]
    bucket = int(np.searchsorted(above, wanted))
    first, last = (1 << bucket - 1 if bucket else 0), 1 << bucket
    inside = (wanted - (above[bucket - 1] if bucket else 0)) / max(int(counts[bucket]), 1)
    return float((first + inside * (last - first)) * (1 << _SHIFT)) * 1e-9
