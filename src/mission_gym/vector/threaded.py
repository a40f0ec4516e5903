"""Environments that wait (network, devices, games in other processes), each in a thread of its own."""

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
from mission_gym.vector.rows import Rows
from mission_gym.vector.side_by_side import Job, SideBySideVec, VecPart

_STACK_BYTES = 1 << 18  # hundreds of threads: their stacks must be small
_SPREAD = 0.8  # of the even distance between the starts of two jobs
_LOOK_EVERY, _BUSY = 64, 0.8  # steps; the share of a core from which on one is not enough


class _OneCore:
    """Keeps threads on one core for as long as that is enough. They take turns at the interpreter anyway, and
    to wake a thread of another core, as every step does, costs an interrupt: three times the rest."""

    def __init__(self) -> None:
        self._cores = os.sched_getaffinity(0) if sys.platform == "linux" else set()
        self._is_pinned = len(self._cores) > 1
        self._threads: set[int] = set()
        self._looks = count(1)
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def join(self) -> None:
        """Called by each thread that takes part in steps."""
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads.add(thread)
            self._move(0)

    @contextmanager
    def left(self) -> Iterator[None]:
        """The thread may use every core meanwhile, as may the processes that it starts."""
        is_ours = self._is_pinned and threading.get_native_id() in self._threads
        if is_ours:
            self._move(0, free=True)
        try:
            yield
        finally:
            if is_ours:
                self._move(0)

    def look(self) -> None:
        """Give all cores back once the process needs more than one."""
        if not self._is_pinned or next(self._looks) % _LOOK_EVERY:
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
        with suppress(OSError):  # refused, as in some sandboxes, or the thread has ended: it stays as it is
            os.sched_setaffinity(thread, {max(self._cores)} if pinned else self._cores)
            # With BATCH a thread that wakes does not interrupt the one at work.
            os.sched_setscheduler(thread, os.SCHED_BATCH if pinned else os.SCHED_OTHER, os.sched_param(0))


class ThreadedVec(SideBySideVec):
    """A SideBySideVec of threads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._core = _OneCore()
        super().__init__(*args, **options)
        self._jobs: list[tuple[Job, int] | None] = [None] * self.num_envs  # and the row in it
        self._gates = [threading.Lock() for _ in self._slots]
        self._turn = threading.Lock()  # held while the rows of a job are being set going
        self._num_parts = 0
        self._has_stepped = False
        self._step_s = 0.0  # of a quick job
        self._next_start = 0.0
        self._callers: ThreadPoolExecutor | None = None
        before = threading.stack_size(_STACK_BYTES)
        try:
            for place, gate in enumerate(self._gates):
                gate.acquire()
                threading.Thread(target=self._serve, args=(place, self._slots[place]), daemon=True).start()
        finally:
            threading.stack_size(before)
        self._is_serving = True

    def run(self, ids: list[int], actions: Sequence[Any], rows: Rows) -> StepBatch:
        self._core.join()
        return super().run(ids, actions, rows)

    def _make(self, job: Job) -> None:
        for row, place in enumerate(job.ids):
            self._jobs[place] = (job, row)
        done = threading.Lock()
        done.acquire()
        job.done = done.release
        first = self._gates[job.ids[0]]
        self._wait_for_turn(job)
        job.is_led = not (job.is_step and self._has_stepped)
        self._has_stepped |= job.is_step
        # Each thread wakes the next: all woken at once would only queue for the interpreter.
        first.release()
        begun = time.monotonic()
        done.acquire()
        took = time.monotonic() - begun
        self._core.look()
        if job.is_step:
            self._step_s = min(took, 1.1 * (self._step_s or took))

    def _wait_for_turn(self, job: Job) -> None:
        """One job is set going after the other, steps spread over the time that one takes. Those whose rows
        are ready at once would be late together, step after step: they all wait for the interpreter."""
        self._turn.acquire()
        if self._num_parts > 1 and job.is_step:
            early = self._next_start - time.monotonic()
            if early > 0:
                time.sleep(early)
            self._next_start = time.monotonic() + _SPREAD * self._step_s / self._num_parts

    def part(self, first: int, last: int) -> VecPart:
        self._num_parts += 1
        return super().part(first, last)

    def spawn(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._callers is None:
            self._callers = ThreadPoolExecutor(self._num_parts)
        return self._callers.submit(function, *args)

    def _close(self) -> list[str]:
        errors = super()._close()
        self._is_serving = False
        self._jobs = [None] * self.num_envs
        for gate in getattr(self, "_gates", ()):
            gate.release()
        self._gates = []
        return errors

    def _serve(self, place: int, slot: EnvSlot) -> None:
        """What the thread of one environment does."""
        self._core.join()
        gates = self._gates
        while True:
            gates[place].acquire()
            task = self._jobs[place]
            if task is None:
                return
            job, row = task
            leads = job.is_led and row == 0
            if not leads:
                self._wake_next(gates, job, row)
            try:
                job.given[row] = job.work(slot, row)
            except BaseException as error:  # noqa: BLE001  border: a thread; told to whoever waits
                job.failure = error
            if leads:
                self._wake_next(gates, job, row)
            self._rest(slot)
            job.leave()

    def _wake_next(self, gates: list[threading.Lock], job: Job, row: int) -> None:
        if row + 1 < len(job.ids):
            gates[job.ids[row + 1]].release()
        else:
            self._turn.release()

    def _begin(self, slot: EnvSlot, episode: int, **how: Any) -> None:
        with self._core.left():
            super()._begin(slot, episode, **how)

    def _revive(self, slot: EnvSlot, failure: MissionGymError, episode: int | None, **how: Any) -> None:
        with self._core.left():
            super()._revive(slot, failure, episode, **how)
