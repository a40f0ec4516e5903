"""Environments that wait (for a network, a device, or a game in another process), one thread for each."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from mission_gym.data import StepBatch
from mission_gym.env.slot import EnvSlot
from mission_gym.errors import MissionGymError
from mission_gym.procs.start import explain_refusal
from mission_gym.vector.arrays import StepArrays
from mission_gym.vector.concurrent import ConcurrentVec, Fanout

_STACK_BYTES = 1 << 18  # small: there may be hundreds of threads
_SPREAD = 0.8  # of the even distance between the starts of two groups
_CHECK_EVERY, _BUSY = 64, 0.8  # steps; the load of the core above which the threads get all cores


class _CorePin:
    """Keeps the threads on one core while one is enough. They take turns at the interpreter anyway, and every
    step wakes a thread: on another core that costs an interrupt, three times as much as everything else."""

    def __init__(self) -> None:
        self._cores = os.sched_getaffinity(0) if sys.platform == "linux" else set()
        self._is_pinned = len(self._cores) > 1
        self._threads: set[int] = set()
        self._checks = count(1)
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def add_thread(self) -> None:
        """Pin the calling thread; each thread that takes part in steps calls this."""
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads.add(thread)
            self._move(0)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Give the calling thread, and the processes that it starts, all cores for the `with` block."""
        is_ours = self._is_pinned and threading.get_native_id() in self._threads
        if is_ours:
            self._move(0, free=True)
        try:
            yield
        finally:
            if is_ours:
                self._move(0)

    def check(self) -> None:
        """Give all threads all cores once the process needs more than one."""
        if not self._is_pinned or next(self._checks) % _CHECK_EVERY:
            return
        wall_s, cpu_s = time.monotonic(), time.process_time()
        if cpu_s - self._cpu_s > _BUSY * (wall_s - self._wall_s):
            self._is_pinned = False
            for thread in tuple(self._threads):
                self._move(thread)
        self._wall_s, self._cpu_s = wall_s, cpu_s

    def _move(self, thread: int, *, free: bool = False) -> None:
        if not self._cores:
            return
        pinned = self._is_pinned and not free
        with suppress(OSError):  # some sandboxes refuse it, and the thread may have ended
            os.sched_setaffinity(thread, {max(self._cores)} if pinned else self._cores)
            # With BATCH a thread that wakes does not interrupt the running one.
            os.sched_setscheduler(thread, os.SCHED_BATCH if pinned else os.SCHED_OTHER, os.sched_param(0))


class ThreadedVec(ConcurrentVec):
    """A ConcurrentVec of threads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._pin = _CorePin()
        super().__init__(*args, **options)
        self._calls: list[tuple[Fanout, int] | None] = [None] * self.num_envs  # with the index in the fan-out
        self._gates = [threading.Lock() for _ in self._slots]
        self._turn = threading.Lock()  # held while the threads of a fan-out are being woken
        self._has_stepped = False
        self._step_s = 0.0  # of a fast fan-out
        self._next_start = 0.0
        self._callers: ThreadPoolExecutor | None = None
        before = threading.stack_size(_STACK_BYTES)
        try:
            for index, gate in enumerate(self._gates):
                gate.acquire()
                thread = threading.Thread(target=self._serve, args=(index, self._slots[index]), daemon=True)
                with explain_refusal():
                    thread.start()
        finally:
            threading.stack_size(before)
        self._is_serving = True

    def step_some(
        self, ids: list[int], rows: list[int], actions: Sequence[Any], arrays: StepArrays
    ) -> StepBatch:
        self._pin.add_thread()
        return super().step_some(ids, rows, actions, arrays)

    def _run(self, fanout: Fanout) -> None:
        for row, index in enumerate(fanout.ids):
            self._calls[index] = (fanout, row)
        done = threading.Lock()
        done.acquire()
        fanout.done = done.release
        first = self._gates[fanout.ids[0]]
        self._wait_for_turn(fanout)
        fanout.is_led = not (fanout.is_step and self._has_stepped)
        self._has_stepped |= fanout.is_step
        # Each thread wakes the next one: all woken at once would only queue for the interpreter.
        first.release()
        begun = time.monotonic()
        done.acquire()
        took = time.monotonic() - begun
        self._pin.check()
        if fanout.is_step:
            self._step_s = min(took, 1.1 * (self._step_s or took))

    def _wait_for_turn(self, fanout: Fanout) -> None:
        """Start one fan-out after the other, with the steps of groups spread over the time that one takes.
        Groups that start together would also end together in every step, and queue for the interpreter."""
        self._turn.acquire()
        if self._num_groups > 1 and fanout.is_step:
            early = self._next_start - time.monotonic()
            if early > 0:
                time.sleep(early)
            self._next_start = time.monotonic() + _SPREAD * self._step_s / self._num_groups

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._callers is None:
            self._callers = ThreadPoolExecutor(self._num_groups)
        return self._callers.submit(function, *args)

    def _close(self) -> list[str]:
        errors = super()._close()
        self._is_serving = False
        self._calls = [None] * self.num_envs
        for gate in getattr(self, "_gates", ()):
            gate.release()
        self._gates = []
        return errors

    def _serve(self, index: int, slot: EnvSlot) -> None:
        """The thread of one environment."""
        self._pin.add_thread()
        gates = self._gates
        while True:
            gates[index].acquire()
            call = self._calls[index]
            if call is None:
                return
            fanout, row = call
            leads = fanout.is_led and row == 0
            if not leads:
                self._wake_next(gates, fanout, row)
            fanout.call(slot, row)
            if leads:
                self._wake_next(gates, fanout, row)
            self._on_end(slot)
            fanout.leave()

    def _wake_next(self, gates: list[threading.Lock], fanout: Fanout, row: int) -> None:
        if row + 1 < len(fanout.ids):
            gates[fanout.ids[row + 1]].release()
        else:
            self._turn.release()

    def _begin(self, slot: EnvSlot, episode: int, **how: Any) -> None:
        with self._pin.released():
            super()._begin(slot, episode, **how)

    def _revive(self, slot: EnvSlot, failure: MissionGymError, episode: int | None, **how: Any) -> None:
        with self._pin.released():
            super()._revive(slot, failure, episode, **how)
