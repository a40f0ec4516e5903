"""Environments that wait (network, devices, games in other processes), each stepped by a thread of its own.

The same transitions as SerialVec. `part` gives some of the rows as a vector that is stepped on its own, so
that rows which are ready need not wait for the slowest of all.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from mission_gym.data import Array, StepBatch
from mission_gym.env.slot import EnvSlot, action_rows
from mission_gym.errors import EnvFailure, UsageError
from mission_gym.vector.rows import Rows, make_rows, write_row
from mission_gym.vector.serial import Ended, SerialVec

_Done = SimpleQueue[tuple[int, Ended | None, BaseException | None]]
_Task = tuple[int, Any, Rows, _Done]
_STACK_BYTES = 1 << 18  # hundreds of threads: their stacks must be small


class ThreadedVec(SerialVec):
    """A SerialVec whose rows are stepped side by side."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._inboxes: list[SimpleQueue[_Task | None]] = [SimpleQueue() for _ in self._slots]
        before = threading.stack_size(_STACK_BYTES)
        try:
            for slot, inbox in zip(self._slots, self._inboxes, strict=True):
                threading.Thread(target=self._serve, args=(slot, inbox), daemon=True).start()
        finally:
            threading.stack_size(before)

    def recv(self, deadline_s: float | None = None) -> StepBatch:
        """Make the steps that were sent, side by side, and return them."""
        self._check_open()
        if self._sent is None:
            raise UsageError("recv() without send(); send actions first")
        (actions, ids), self._sent = self._sent, None
        self._ready = False
        batch = self.run(ids, actions, self._rows)
        self._ready = True
        return batch

    def run(self, ids: list[int], actions: Sequence[Any], rows: Rows) -> StepBatch:
        """Step some rows into arrays of their own; several threads may do so for different rows."""
        count = len(ids)
        rows.terminated[:count] = rows.truncated[:count] = False
        rows.valid[:count] = True
        done: _Done = SimpleQueue()
        for row, env_id in enumerate(ids):
            self._inboxes[env_id].put((row, actions[row], rows, done))
        ended: dict[int, Ended] = {}
        failure: BaseException | None = None
        for _ in ids:
            row, over, error = done.get()
            failure = failure or error
            if over is not None:
                ended[row] = over
        if failure is not None:
            raise failure
        return self._finish(ids, rows, dict(sorted(ended.items())))

    def part(self, first: int, last: int) -> ThreadedPart:
        """Rows `first` up to `last` as a vector of their own."""
        return ThreadedPart(self, first, last)

    def close(self) -> None:
        """Close every environment, and let the threads go."""
        super().close()
        for inbox in getattr(self, "_inboxes", ()):
            inbox.put(None)

    def _serve(self, slot: EnvSlot, inbox: SimpleQueue[_Task | None]) -> None:
        """What the thread of one environment does."""
        while (task := inbox.get()) is not None:
            row, action, rows, done = task
            try:
                done.put((row, self._step_row(slot, row, action, rows), None))
            except Exception as error:  # noqa: BLE001  border: a thread; told to whoever waits
                done.put((row, None, error))

    def _step_row(self, slot: EnvSlot, row: int, action: Any, rows: Rows) -> Ended | None:
        if self._watch is not None:
            self._watch(slot, action)
        over = None
        try:
            rows.reward[row], terminated, truncated = slot.step(action)
        except EnvFailure as failure:
            over = self._lose(slot, failure, rows, row)
        else:
            if slot.ended:
                rows.terminated[row], rows.truncated[row] = terminated, truncated
                over = self._end(slot, slot.finish(terminated), None)
        write_row(slot, row, rows.obs, rows.mask)
        return over


class ThreadedPart:
    """Some rows of a ThreadedVec, with what a collector needs."""

    def __init__(self, vec: ThreadedVec, first: int, last: int) -> None:
        self.num_envs = last - first
        self._vec, self._ids = vec, list(range(first, last))
        self._rows = make_rows(vec.spec, self.num_envs)

    def reset(self) -> StepBatch:
        raise UsageError("reset the whole vector")

    def step(self, actions: Array) -> StepBatch:
        """Step these rows."""
        return self._vec.run(self._ids, action_rows(self._vec.spec, np.asarray(actions)), self._rows)
