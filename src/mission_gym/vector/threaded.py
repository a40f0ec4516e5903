"""Environments that wait (network, devices, games in other processes), each stepped by a thread of its own.

The same transitions as SerialVec. `part` gives some of the rows as a vector that is stepped on its own, so
that rows which are ready need not wait for the slowest of all.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import numpy as np

from mission_gym.data import Array, StepBatch
from mission_gym.env.slot import EnvSlot, action_rows
from mission_gym.errors import EnvFailure, MissionGymError, UsageError
from mission_gym.vector.rows import Rows, join_axes, make_rows, write_row
from mission_gym.vector.serial import Ended, SerialVec

_STACK_BYTES = 1 << 18  # hundreds of threads: their stacks must be small
_SPREAD = 0.8  # of the even distance between the starts of two jobs
_LOOK_EVERY, _BUSY = 64, 0.8  # steps; the share of a core from which on one is not enough


class _Job:
    """One step of some rows, or their resets, which their threads make side by side. work: of a row."""

    def __init__(self, ids: list[int], work: Callable[[EnvSlot, int], Ended | None]) -> None:
        self.ids, self.work = ids, work
        self.ended: dict[int, Ended] = {}
        self.failure: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()
        self._num_done = count(1)  # drawing the next number can't be interrupted

    def leave(self) -> None:
        """The last row to be done wakes whoever waits."""
        if next(self._num_done) == len(self.ids):
            self.done.release()


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


class ThreadedVec(SerialVec):
    """A SerialVec whose rows are stepped side by side. rest: told when what `watch` was told of is over."""

    shares_engines = False  # their rows would wait for each other

    def __init__(
        self, *args: Any, rest: Callable[[EnvSlot], None] = lambda slot: None, **options: Any
    ) -> None:
        self._core = _OneCore()
        self._rest = rest
        super().__init__(*args, **options)
        self._jobs: list[tuple[_Job, int] | None] = [None] * self.num_envs  # and the row in it
        self._gates = [threading.Lock() for _ in self._slots]
        self._turn = threading.Lock()  # held while the rows of a job are being set going
        self._num_parts = 0
        self._step_s = 0.0  # of a quick job
        self._next_start = 0.0
        before = threading.stack_size(_STACK_BYTES)
        try:
            for place, gate in enumerate(self._gates):
                gate.acquire()
                threading.Thread(target=self._serve, args=(place, self._slots[place]), daemon=True).start()
        finally:
            threading.stack_size(before)

    def _recv(self) -> StepBatch:
        (actions, ids), self._sent = self._sent, None
        return self.run(ids, actions, self._rows)

    def run(self, ids: list[int], actions: Sequence[Any], rows: Rows) -> StepBatch:
        """Step some rows into arrays of their own; several threads may do so for different rows."""
        self._core.join()
        rows.terminated[: len(ids)] = rows.truncated[: len(ids)] = False
        rows.valid[: len(ids)] = True
        job = _Job(ids, lambda slot, row: self._step_row(slot, row, actions[row], rows))
        took = self._make(job)
        self._step_s = min(took, 1.1 * (self._step_s or took))
        if self._views is not None:
            np.concatenate(
                [self._slots[place].obs[0] for place in ids],
                out=join_axes(rows.obs[0][: len(ids)]),
                casting="unsafe",
            )
        return self._finish(ids, rows, dict(sorted(job.ended.items())))

    def _make(self, job: _Job) -> float:
        """Let the threads of a job's rows make it; returns the seconds that it took."""
        for row, place in enumerate(job.ids):
            self._jobs[place] = (job, row)
        first = self._gates[job.ids[0]]
        self._wait_for_turn()
        # Each thread wakes the next: all woken at once would only queue for the interpreter.
        first.release()
        begun = time.monotonic()
        job.done.acquire()
        took = time.monotonic() - begun
        self._core.look()
        if job.failure is not None:
            raise job.failure
        return took

    def _begin_rows(self, ids: list[int], how: Sequence[dict[str, Any]]) -> None:
        if ids:
            self._make(_Job(ids, lambda slot, row: self._begin(slot, **how[row])))

    def _wait_for_turn(self) -> None:
        """One job is set going after the other, spread over the time that a step takes. Jobs whose rows are
        ready at once would be late together, step after step: they all wait for the interpreter."""
        self._turn.acquire()
        if self._num_parts > 1:
            early = self._next_start - time.monotonic()
            if early > 0:
                time.sleep(early)
            self._next_start = time.monotonic() + _SPREAD * self._step_s / self._num_parts

    def part(self, first: int, last: int) -> ThreadedPart:
        """Rows `first` up to `last` as a vector of their own."""
        self._num_parts += 1
        return ThreadedPart(self, first, last)

    def _close(self) -> list[str]:
        errors = super()._close()
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
            if row + 1 < len(job.ids):
                gates[job.ids[row + 1]].release()
            else:
                self._turn.release()
            try:
                over = job.work(slot, row)
                if over is not None:
                    job.ended[row] = over
            except BaseException as error:  # noqa: BLE001  border: a thread; told to whoever waits
                job.failure = error
            self._rest(slot)
            job.leave()

    def _begin(self, slot: EnvSlot, episode: int, **how: Any) -> None:
        try:
            with self._core.left():
                super()._begin(slot, episode, **how)
        finally:
            self._rest(slot)

    def _revive(self, slot: EnvSlot, failure: MissionGymError, episode: int | None, **how: Any) -> None:
        with self._core.left():
            super()._revive(slot, failure, episode, **how)

    def _step_row(self, slot: EnvSlot, row: int, action: Any, rows: Rows) -> Ended | None:
        if self.spec.agents:
            return self._step_agents(slot, row, action, rows)
        if self._late_reset and slot.ended:
            self._begin(slot, slot.episode + 1)
            rows.reward[row] = 0.0
            if self._views is None:
                write_row(slot, row, rows.obs, rows.mask)
            return None
        if self._watch is not None:
            self._watch(slot, action)
        over = None
        try:
            rows.reward[row], terminated, truncated = slot.step(action)
        except EnvFailure as failure:
            rows.reward[row] = 0.0
            over = self._lose(slot, failure, rows, row)
        else:
            if slot.ended:
                rows.terminated[row], rows.truncated[row] = terminated, truncated
                over = self._end(slot, slot.finish(terminated), None)
        if self._views is None:  # else `run` writes all of them at once
            write_row(slot, row, rows.obs, rows.mask)
        return over


class ThreadedPart:
    """Some rows of a ThreadedVec, with what a collector needs."""

    def __init__(self, vec: ThreadedVec, first: int, last: int) -> None:
        self.num_envs = last - first
        self.num_rows = self.num_envs * vec.per_env
        self._vec, self._ids = vec, list(range(first, last))
        self._rows = make_rows(vec.spec, self.num_envs)

    def reset(self) -> StepBatch:
        raise UsageError("reset the whole vector")

    def step(self, actions: Array) -> StepBatch:
        """Step these rows."""
        return self._vec.run(self._ids, action_rows(self._vec.spec, np.asarray(actions)), self._rows)
