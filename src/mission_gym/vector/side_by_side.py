"""What vectors share whose environments are stepped side by side, since they wait: jobs of rows, and parts.

The same transitions as SerialVec. `part` gives some of the rows as a vector that is stepped on its own, so
that rows which are ready need not wait for the slowest of all. How the rows of a job are set going is for
each kind to say (`_make`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from time import monotonic_ns
from typing import Any

import numpy as np

from mission_gym.data import Array, StepBatch
from mission_gym.env.resume import SlotState
from mission_gym.env.slot import EnvSlot, action_rows
from mission_gym.errors import EnvFailure, UsageError
from mission_gym.vector.endings import Ended
from mission_gym.vector.gauges import NUM_FAILED, NUM_GAUGES, count_step
from mission_gym.vector.rows import Rows, join_axes, make_rows, write_row
from mission_gym.vector.serial import SerialVec

Work = Callable[[EnvSlot, int], Any]


class Job:
    """Work for some rows, made side by side: what each of them gave, and what one of them raised.
    done: called when the last row is through. is_step: it is one step of each. is_led: its first row is
    through before the others begin, since what is used for the first time is loaded then, often by code that
    no two threads may run at once."""

    is_led = False

    def __init__(self, ids: list[int], work: Work, *, is_step: bool = False) -> None:
        self.ids, self.work, self.is_step = ids, work, is_step
        self.given: dict[int, Any] = {}
        self.failure: BaseException | None = None
        self.done: Callable[[], None] = lambda: None
        self._num_done = count(1)  # drawing the next number can't be interrupted

    def leave(self) -> None:
        """A row is through."""
        if next(self._num_done) == len(self.ids):
            self.done()


class SideBySideVec(SerialVec):
    """A SerialVec whose rows are stepped side by side.

    rest: told when what `watch` was told of is over. gauges: see `gauges`. timeout_s, reset_timeout_s: of a
    step and of a reset, for kinds that can break one off.
    """

    side_by_side = True
    _is_serving = False  # its rows are there

    def __init__(
        self,
        *args: Any,
        rest: Callable[[EnvSlot], None] = lambda slot: None,
        gauges: Array | None = None,
        timeout_s: float = 60.0,
        reset_timeout_s: float = 300.0,
        **options: Any,
    ) -> None:
        self._rest = rest
        self._timeout_s, self._reset_timeout_s = timeout_s, reset_timeout_s
        super().__init__(*args, **options)
        if gauges is None:
            gauges = np.zeros((self.num_envs, NUM_GAUGES), np.int64)
        self._gauges = [memoryview(row) for row in gauges]

    @abstractmethod
    def _make(self, job: Job) -> None:
        """Let the rows of a job do its work, and wait until the last is through."""

    @abstractmethod
    def spawn(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call what steps a part, beside others that do."""

    def _do(self, ids: list[int], work: Work) -> list[Any]:
        if not self._is_serving:
            return super()._do(ids, work)
        return self._run_job(Job(ids, work))

    def _run_job(self, job: Job) -> list[Any]:
        """What its rows gave, in their order; an error of one of them is raised."""
        if job.ids:
            self._make(job)
        if job.failure is not None:
            raise job.failure
        return [job.given[row] for row in range(len(job.ids))]

    def _recv(self) -> StepBatch:
        (actions, ids), self._sent = self._sent, None
        return self.run(ids, actions, self._rows)

    def run(self, ids: list[int], actions: Sequence[Any], rows: Rows) -> StepBatch:
        """Step some rows into arrays of their own; several callers may do so for different rows."""
        rows.terminated[: len(ids)] = rows.truncated[: len(ids)] = False
        rows.valid[: len(ids)] = True
        work: Work = lambda slot, row: self._step_row(slot, row, actions[row], rows)  # noqa: E731
        made = self._run_job(Job(ids, work, is_step=True))
        if self._views is not None:
            np.concatenate(
                [self._slots[place].obs[0] for place in ids],
                out=join_axes(rows.obs[0][: len(ids)]),
                casting="unsafe",
            )
        return self._finish(ids, rows, {row: over for row, over in enumerate(made) if over is not None})

    def _step_row(self, slot: EnvSlot, row: int, action: Any, rows: Rows) -> Ended | None:
        begun = monotonic_ns()
        gauges = self._gauges[slot.env_id - self._first_id]
        if self.spec.agents:
            over = self._step_agents(slot, row, action, rows)
            if over is None:  # else a reset may be part of it
                count_step(gauges, monotonic_ns() - begun)
            return over
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
            gauges[NUM_FAILED] += 1
            rows.reward[row] = 0.0
            over = self._lose(slot, failure, rows, row)
        else:
            count_step(gauges, monotonic_ns() - begun)
            if slot.ended:
                rows.terminated[row], rows.truncated[row] = terminated, truncated
                over = self._end(slot, slot.finish(terminated), None)
        if self._views is None:  # else `run` writes all of them at once
            write_row(slot, row, rows.obs, rows.mask)
        return over

    def _begin(self, slot: EnvSlot, episode: int, **how: Any) -> None:
        try:
            super()._begin(slot, episode, **how)
        finally:
            self._rest(slot)

    def _restore_rows(self, states: Sequence[SlotState], budget_s: float) -> list[str]:
        # Their replays run side by side, each within the budget.
        return self._do(self._all, lambda slot, row: slot.restore(states[row], budget_s))

    def part(self, first: int, last: int) -> VecPart:
        """Rows `first` up to `last` as a vector of their own."""
        return VecPart(self, first, last)


class VecPart:
    """Some rows of a SideBySideVec, with what a collector needs."""

    def __init__(self, vec: SideBySideVec, first: int, last: int) -> None:
        self.num_envs = last - first
        self.num_rows = self.num_envs * vec.per_env
        self._vec, self._ids = vec, list(range(first, last))
        self._rows = make_rows(vec.spec, self.num_envs)

    def reset(self) -> StepBatch:
        raise UsageError("reset the whole vector")

    def step(self, actions: Array) -> StepBatch:
        """Step these rows."""
        return self._vec.run(self._ids, action_rows(self._vec.spec, np.asarray(actions)), self._rows)
