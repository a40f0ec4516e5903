"""Threads that step rows together with the caller, without the GIL."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from mission_gym.data import Array
from mission_gym.missions.capture.sim.sharing import DONE, NUM_COUNTERS, TAKEN, open_rows, wait_rows

# Looks at a counter take about 0.5 ms: a thread that sleeps takes as long to wake as thirty rows to step, so
# between two steps a helper looks for the next one first.
_LOOKS = 1_500_000
_SHARES_PER_THREAD = 16  # the end of a step waits for no more than one of them

StepRows = Callable[[Array, int, int], None]  # (counters, rows per share, looks for more rows before it ends)


class Helpers:
    """`num_helpers` threads, and the caller of `run`."""

    def __init__(self, step_rows: StepRows, num_rows: int, num_helpers: int) -> None:
        """step_rows: must not refer to the owner, which could never be collected then."""
        self._step_rows = step_rows
        self._num_rows = num_rows
        self._counters = np.zeros(NUM_COUNTERS, np.int64)
        self._counters[[TAKEN, DONE]] = num_rows
        self._share = max(1, num_rows // (_SHARES_PER_THREAD * (num_helpers + 1) if num_helpers else 1))
        self._sleepers: list[threading.Event] = []
        work = (step_rows, self._counters, self._share, self._sleepers)
        ended = threading.Event()
        for _ in range(num_helpers):
            threading.Thread(target=_help, args=(*work, ended), name="capture", daemon=True).start()
        self.close: Callable[[], Any] = weakref.finalize(self, _end, self._sleepers, ended)

    def run(self) -> None:
        """Step every row once."""
        open_rows(self._counters)
        _wake(self._sleepers)
        self._step_rows(self._counters, self._share, 0)
        while not wait_rows(self._counters, self._num_rows, _LOOKS):
            time.sleep(0)  # a helper has rows in hand and no core


def _help(
    step_rows: StepRows,
    counters: Array,
    share: int,
    sleepers: list[threading.Event],
    ended: threading.Event,
) -> None:
    """Step rows while there are any; sleep when none come for a while."""
    awake = threading.Event()
    while not ended.is_set():
        step_rows(counters, share, _LOOKS)
        awake.clear()
        sleepers.append(awake)
        if not ended.is_set():  # else it may have been too late to be woken
            awake.wait()


def _wake(sleepers: list[threading.Event]) -> None:
    while sleepers:
        sleepers.pop().set()


def _end(sleepers: list[threading.Event], ended: threading.Event) -> None:
    ended.set()
    _wake(sleepers)
