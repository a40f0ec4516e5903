"""Finds environments and workers that fail: restart budgets, and heartbeats that stop.

Workers leave a heartbeat in shared memory before every step and reset. Nothing here waits for a worker or
ends one: the pool does that.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from mission_gym.errors import MissionGymError, WorkerError
from mission_gym.vector.arrays import HELD_SINCE, RESETTING, Heartbeat, SharedArrays
from mission_gym.vector.record import Limits

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_BLOCKED_S = 1.0  # no turn at an event loop should take this long


class RestartBudget:
    """Counts the failures of each environment since its last finished episode. pause: how to wait between
    attempts. report: receives every failure."""

    def __init__(
        self,
        max_restarts: int,
        pause: Callable[[float], None] = time.sleep,
        report: Callable[[MissionGymError], None] | None = None,
    ) -> None:
        self.max_restarts = max_restarts
        self._pause, self._report = pause, report
        self._failures: dict[int, int] = {}

    def spend(self, env_id: int, failure: MissionGymError, details: str = "") -> None:
        """Pause before another attempt; raise the failure if there have been too many.

        The first attempt does not pause. details: the original traceback, if `failure` has no cause.
        """
        if self._report is not None:
            self._report(failure)
        count = self._failures[env_id] = self._failures.get(env_id, 0) + 1
        if count > self.max_restarts:
            if not details and failure.__cause__ is not None:
                details = "".join(traceback.format_exception(failure.__cause__))
            rule = f"environment {env_id} failed {count} times without a finished episode in between"
            message = f"{failure}\n{rule}; the limit is {self.max_restarts} restarts [--max-restarts]"
            last = type(failure)(f"{message}\n{details.rstrip()}" if details else message)
            last.facts = failure.facts
            raise last from failure
        if count > 1:
            self._pause(min(_FIRST_PAUSE_S * 2 ** (count - 2), _LONGEST_PAUSE_S))

    def forget(self, env_id: int) -> None:
        """Reset the count of an environment that finished an episode."""
        if self._failures:
            self._failures.pop(env_id, None)

    def clear(self) -> None:
        """Reset all counts."""
        self._failures.clear()


class HeartbeatMonitor:
    """Reads the heartbeats of all workers.

    is_concurrent: environments of a worker are stepped concurrently, so each has its own deadline. grace_s:
    additional time for the worker to cancel a late step by itself.
    """

    def __init__(
        self,
        shared: SharedArrays,
        env_ids: list[range],
        limits: Limits,
        *,
        is_concurrent: bool,
        grace_s: float,
    ) -> None:
        self._shared, self._env_ids, self._limits = shared, env_ids, limits
        self._is_concurrent, self._grace_s = is_concurrent, grace_s
        self._numbers = np.zeros(len(shared.heartbeats), np.int64)  # last seen, by environment
        self._seen_at = np.zeros(len(shared.heartbeats))  # when they were new
        self._asked_at = [time.monotonic()] * len(env_ids)  # by worker

    def note_command(self, worker: int) -> None:
        """A worker was sent a command."""
        self._asked_at[worker] = time.monotonic()

    def forget(self, worker: int) -> None:
        """Clear the heartbeats of a worker whose process has ended."""
        ids = self._env_ids[worker]
        self._shared.heartbeats[ids] = 0
        self._shared.counters[ids, HELD_SINCE] = 0
        self._numbers[ids] = 0

    def find_hung(self, worker: int) -> tuple[Heartbeat, str, float] | None:
        """The step or reset of a worker that missed its deadline, a message, and when it began; None if all
        are in time."""
        ids, now = self._env_ids[worker], time.monotonic()
        rows = slice(ids.start, ids.stop)
        heartbeats, seen_at = self._shared.heartbeats[rows].copy(), self._seen_at[rows]
        numbers = heartbeats[:, 0]
        seen_at[numbers != self._numbers[rows]] = now
        self._numbers[rows] = numbers
        is_resetting = heartbeats[:, Heartbeat._fields.index("step")] == RESETTING
        limits = np.where(is_resetting, self._limits.reset_timeout_s, self._limits.timeout_s)
        busy = np.flatnonzero(numbers) if self._is_concurrent else np.empty(0, np.int64)
        if len(busy):
            row = int(busy[(seen_at + limits)[busy].argmin()])  # nearest to its deadline
            since = float(seen_at[row])
        else:  # stepped one after the other, the newest is running; or all are idle
            row = int(numbers.argmax())
            since = max(self._asked_at[worker], float(seen_at.max()))
        if now - since <= limits[row] + self._grace_s:
            return None
        holder = self._find_holder(ids, _BLOCKED_S)
        last = Heartbeat.read(heartbeats[row if holder is None else holder])
        call = "reset()" if last.step == RESETTING else "step()"
        blocked = "" if holder is None else ", and blocked the event loop, on which all others wait"
        return last, f"{call} did not return within {limits[row]:.0f} s{blocked} [--env-timeout]", since

    def find_newest(self, worker: int) -> Heartbeat:
        """The last heartbeat of a worker, or that of the environment that holds its event loop."""
        ids = self._env_ids[worker]
        row = self._find_holder(ids)
        if row is None:
            row = int(self._shared.heartbeats[ids, 0].argmax())
        return Heartbeat.read(self._shared.heartbeats[ids[row]])

    def _find_holder(self, ids: range, least_s: float = 0.0) -> int | None:
        """The index of the environment that has held the event loop for at least this long."""
        since = self._shared.counters[ids, HELD_SINCE]
        row = int(since.argmax())
        held_s = 1e-9 * (time.monotonic_ns() - int(since[row]))
        return row if since[row] and held_s >= least_s else None

    def explain(self, cause: WorkerError, last: Heartbeat) -> WorkerError | None:
        """The error with the step that failed, and its facts in addition to those of the cause; None if the
        step is unknown."""
        if not last.number:
            return None
        seed = None if last.seed < 0 else last.seed
        step = max(last.step, 0)
        actions: list[Any] | None = []
        doing = "in reset()"
        if last.step != RESETTING:
            actions = self._shared.actions_of(last.env_id, step)
            doing = f"the action was {actions[-1] if actions else '?'}"
        where = f"environment {last.env_id}, seed {seed}, episode {last.episode}, step {step}"
        failure = type(cause)(f"{where}: {cause}; {doing}")
        failure.facts = {
            **(cause.facts or {}),
            "env_index": last.env_id,
            "episode": last.episode,
            "seed": seed,
            "step": step,
            "actions": actions,
            "stage": None if last.stage < 0 else last.stage,
            "call": "reset" if last.step == RESETTING else "step",
        }
        return failure
