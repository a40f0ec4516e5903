"""The base of vectors that step their environments concurrently, because they wait: ThreadedVec and AioVec.

Transitions equal those of SerialVec. `group` returns some of the environments as a vector that is stepped by
itself, so that ready environments need not wait for the slowest one. Each kind implements how the calls of a
`Fanout` run (`_run`). The latency of steps is counted per environment in shared memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from time import monotonic_ns
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array, StepBatch
from mission_gym.env.resume import SlotState
from mission_gym.env.slot import EnvSlot, action_rows
from mission_gym.errors import EnvFailure, UsageError
from mission_gym.vector.arrays import (
    BLOCKED_NS,
    FIRST_BUCKET,
    LATENCY_NS,
    NUM_BUCKETS,
    NUM_FAILED,
    NUM_STEPS,
    StepArrays,
    make_counters,
    make_step_arrays,
    write_row,
)
from mission_gym.vector.serial import Ended, SerialVec

_BUCKET_SHIFT = 16
Work = Callable[[EnvSlot, int], Any]


class Fanout:
    """One call for each of some environments, made concurrently.

    done: called after the last one. is_step: each call is one step. is_led: the first call ends before the
    others begin. It often imports code that two threads must not import at once.
    """

    is_led = False

    def __init__(self, ids: list[int], work: Work, *, is_step: bool = False) -> None:
        self.ids, self.work, self.is_step = ids, work, is_step
        self.results: dict[int, Any] = {}
        self.failure: BaseException | None = None
        self.done: Callable[[], None] = lambda: None
        self._num_done = count(1)  # drawing the next number can't be interrupted

    def call(self, slot: EnvSlot, row: int) -> None:
        """Make one of the calls."""
        try:
            self.results[row] = self.work(slot, row)
        except BaseException as error:  # noqa: BLE001  border: a thread or task; raised where it is awaited
            self.failure = error

    def leave(self) -> None:
        """Count a call as finished."""
        if next(self._num_done) == len(self.ids):
            self.done()


class ConcurrentVec(SerialVec):
    """A SerialVec whose environments are stepped concurrently."""

    is_concurrent = True
    _is_serving = False  # the threads or tasks of the environments exist
    _num_groups = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        counters = make_counters(self.num_envs) if self._shard is None else self._shard.counters
        self._counters = [memoryview(row) for row in counters]

    @abstractmethod
    def _run(self, fanout: Fanout) -> None:
        """Make the calls of a fan-out and wait for the last one."""

    @abstractmethod
    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function that steps a group, concurrently with others."""

    def _for_each(self, ids: list[int], work: Work) -> list[Any]:
        if not self._is_serving:
            return super()._for_each(ids, work)
        return self._gather(Fanout(ids, work))

    def _gather(self, fanout: Fanout) -> list[Any]:
        """The results in order; an error of one call is raised."""
        if fanout.ids:
            self._run(fanout)
        if fanout.failure is not None:
            raise fanout.failure
        return [fanout.results[row] for row in range(len(fanout.ids))]

    def _on_end(self, slot: EnvSlot) -> None:
        if self._shard is not None:
            self._shard.on_end(slot)

    def _recv(self) -> StepBatch:
        (actions, ids), self._sent = self._sent, None
        return self.step_some(ids, ids, actions, self._arrays)

    def step_some(
        self, ids: list[int], rows: list[int], actions: Sequence[Any], arrays: StepArrays
    ) -> StepBatch:
        """Step some environments into rows of these arrays; several callers may step different ones."""
        arrays.terminated[rows] = arrays.truncated[rows] = False
        arrays.valid[rows] = True
        work: Work = lambda slot, i: self._step_row(slot, rows[i], actions[i], arrays)  # noqa: E731
        results = self._gather(Fanout(ids, work, is_step=True))
        if self._views is not None:
            joined = np.concatenate([self._slots[env_id].obs[0] for env_id in ids])
            arrays.obs[0][rows] = joined.reshape(len(ids), *arrays.obs[0].shape[1:])
        if self._watch.suspects(arrays.obs):
            self._check_values([self._slots[env_id] for env_id in ids])
        ended = {row: end for row, end in zip(rows, results, strict=True) if end is not None}
        return self._make_batch(ids, rows, arrays, ended)

    def _step_row(self, slot: EnvSlot, row: int, action: Any, arrays: StepArrays) -> Ended | None:
        begun = monotonic_ns()
        counters = self._counters[slot.env_id - self._first_id]
        if self.spec.agents:
            ended = self._step_agents(slot, row, action, arrays)
            if ended is None:  # else the time may include a reset
                count_step(counters, monotonic_ns() - begun)
            return ended
        ended = None
        if self._late_reset and slot.ended:
            self._begin(slot, slot.episode + 1)
            arrays.reward[row] = 0.0
        else:
            if self._on_start is not None:
                self._on_start(slot, action)
            try:
                arrays.reward[row], terminated, truncated = slot.step(action)
            except EnvFailure as failure:
                counters[NUM_FAILED] += 1
                arrays.reward[row] = 0.0
                ended = self._fail(slot, row, arrays, failure)
            else:
                count_step(counters, monotonic_ns() - begun)
                if slot.ended:
                    arrays.terminated[row], arrays.truncated[row] = terminated, truncated
                    ended = self._end(slot, row, arrays, terminated)
        if self._views is None:  # else `step_some` writes all rows at once
            write_row(slot, row, arrays.obs, arrays.mask)
        return ended

    def _begin(self, slot: EnvSlot, episode: int, **how: Any) -> None:
        try:
            super()._begin(slot, episode, **how)
        finally:
            self._on_end(slot)

    def _restore_slots(self, states: Sequence[SlotState], budget_s: float) -> list[str]:
        # Replays run concurrently, each within the budget.
        return self._for_each(self._all, lambda slot, row: slot.restore(states[row], budget_s))

    def group(self, first: int, last: int) -> VecGroup:
        """Environments `first` up to `last` as a vector."""
        self._num_groups += 1
        return VecGroup(self, first, last)


class VecGroup:
    """Some environments of a ConcurrentVec, with the methods that a collector needs."""

    def __init__(self, vec: ConcurrentVec, first: int, last: int) -> None:
        self.num_envs = last - first
        self.num_columns = self.num_envs * vec.per_env
        self._vec, self._ids, self._rows = vec, list(range(first, last)), list(range(last - first))
        self._arrays = make_step_arrays(vec.spec, self.num_envs)

    def reset(self) -> StepBatch:
        raise UsageError("reset the whole vector")

    def step(self, actions: Array) -> StepBatch:
        """Step these environments."""
        given = action_rows(self._vec.spec, np.asarray(actions))
        return self._vec.step_some(self._ids, self._rows, given, self._arrays)


def count_step(counters: memoryview, latency_ns: int) -> None:
    """Count a step in the counters of its environment."""
    counters[NUM_STEPS] += 1
    counters[LATENCY_NS] += latency_ns
    counters[FIRST_BUCKET + min((latency_ns >> _BUCKET_SHIFT).bit_length(), NUM_BUCKETS - 1)] += 1


class StepLatency(NamedTuple):
    """The latency of concurrent steps over some time."""

    in_flight: float  # mean number of steps under way
    latency_s: float  # mean
    latency_p95_s: float
    error_rate: float  # share of the steps that failed
    blocked: float  # share of the time in which an environment blocked an event loop without computing
    blocked_env: int  # the environment that blocked longest

    def metrics(self) -> dict[str, float]:
        """The values for a row of metrics."""
        values = {
            "time/in_flight": self.in_flight,
            "time/step_latency_s": self.latency_s,
            "time/step_latency_p95_s": self.latency_p95_s,
            "time/step_error_rate": self.error_rate,
        }
        if self.blocked:
            values |= {"time/loop_blocked": self.blocked, "time/loop_blocked_env": float(self.blocked_env)}
        return values


class LatencyReader:
    """Reads the counters since the previous read."""

    def __init__(self, counters: Array) -> None:
        self._counters, self._before = counters, counters.copy()

    def read(self, seconds: float) -> StepLatency | None:
        """The latency over this many seconds of stepping; None if there were no steps."""
        now = self._counters.copy()
        new, self._before = now - self._before, now
        steps, failed = (int(new[:, column].sum()) for column in (NUM_STEPS, NUM_FAILED))
        if not steps or seconds <= 0:
            return None
        latency_s, blocked = 1e-9 * float(new[:, LATENCY_NS].sum()), new[:, BLOCKED_NS]
        return StepLatency(
            in_flight=latency_s / seconds,
            latency_s=latency_s / steps,
            latency_p95_s=_find_quantile(new[:, FIRST_BUCKET : FIRST_BUCKET + NUM_BUCKETS].sum(0), 0.95),
            error_rate=failed / (steps + failed),
            blocked=min(1e-9 * float(blocked.sum()) / seconds, 1.0),
            blocked_env=int(blocked.argmax()),
        )


def _find_quantile(counts: Array, share: float) -> float:
    """A quantile in seconds, as if the steps of a bucket were spread evenly over it."""
    above = np.cumsum(counts)
    wanted = share * above[-1]
    bucket = int(np.searchsorted(above, wanted))
    first, last = (1 << bucket - 1 if bucket else 0), 1 << bucket
    inside = (wanted - (above[bucket - 1] if bucket else 0)) / max(int(counts[bucket]), 1)
    return float((first + inside * (last - first)) * (1 << _BUCKET_SHIFT)) * 1e-9
