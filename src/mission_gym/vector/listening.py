"""What the parent hears of workers through the board: how long an environment has been at what it does, and
which one to blame.

In: the beats that workers leave before every step and reset, and the gauges of event loops. Nothing here
waits, or ends anybody: that is the crew's.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from mission_gym.errors import WorkerError
from mission_gym.vector.board import RESETTING, Heartbeat, SharedArrays, read_heartbeat
from mission_gym.vector.gauges import HELD_SINCE
from mission_gym.vector.restarts import Limits
from mission_gym.vector.serial import SerialVec

_HOLDS_S = 1.0  # at an event loop: longer than any turn should take


class Silence(NamedTuple):
    """How long nothing was heard of an environment."""

    beat: Heartbeat  # what it began last
    silent_s: float
    limit_s: float
    told_s: float  # the limit without what its worker has to break it off by itself
    holds: bool  # an event loop, on which others wait

    def describe(self) -> str:
        """What took too long."""
        what = "reset()" if self.beat.step == RESETTING else "step()"
        blocked = ", and blocked the event loop, on which all others wait" if self.holds else ""
        return f"{what} did not return within {self.told_s:.0f} s{blocked} [--env-timeout]"


class Listener:
    """Hears the environments of all workers. kind: how these step them; those that are stepped side by side
    are watched one by one."""

    def __init__(
        self, board: SharedArrays, env_ids: list[range], limits: Limits, kind: type[SerialVec]
    ) -> None:
        self._board, self._env_ids, self._limits = board, env_ids, limits
        self._side_by_side, self._grace_s = kind.side_by_side, kind.grace_s
        self._heard = np.zeros(len(board.beats), np.int64)  # last beats, by environment
        self._new_at = np.zeros(len(board.beats))  # when they were new
        self._asked_at = [time.monotonic()] * len(env_ids)  # by worker

    def note_asked(self, worker: int) -> None:
        """A worker was given a command."""
        self._asked_at[worker] = time.monotonic()

    def forget(self, worker: int) -> None:
        """Its process has ended; the next begins anew."""
        ids = self._env_ids[worker]
        self._board.beats[ids] = 0
        self._board.gauges[ids, HELD_SINCE] = 0
        self._heard[ids] = 0

    def listen(self, worker: int) -> Silence:
        """What a worker has been at for too long, or nearest to that."""
        ids, now = self._env_ids[worker], time.monotonic()
        rows = slice(ids[0], ids[-1] + 1)
        board, new_at = self._board.beats[rows].copy(), self._new_at[rows]
        beats, timeout_s = board[:, 0], self._limits.timeout_s
        new_at[beats != self._heard[rows]] = now
        self._heard[rows] = beats
        limits = np.where(board[:, 4] == RESETTING, self._limits.reset_timeout_s, timeout_s) + self._grace_s
        at_work = np.flatnonzero(beats) if self._side_by_side else np.empty(0, np.int64)
        if len(at_work):
            place = int(at_work[(new_at + limits)[at_work].argmin()])
            since = float(new_at[place])
        else:  # one after the other the newest is of the one at work; or all rest, and were heard of lately
            place = int(beats.argmax())
            since = max(self._asked_at[worker], float(new_at.max()))
        holder = self._find_holder(ids, _HOLDS_S)
        blamed = place if holder is None else holder
        limit_s = float(limits[place])
        return Silence(
            read_heartbeat(board[blamed]), now - since, limit_s, limit_s - self._grace_s, holder is not None
        )

    def find_newest(self, worker: int) -> Heartbeat:
        """What its environments began last, or what the one does that has its turn at their event loop."""
        ids = self._env_ids[worker]
        holder = self._find_holder(ids)
        return self._board.beat(ids[int(self._board.beats[ids, 0].argmax()) if holder is None else holder])

    def _find_holder(self, ids: range, least_s: float = 0.0) -> int | None:
        """Which of these environments has had its turn at the event loop for so long: the others wait."""
        since = self._board.gauges[ids, HELD_SINCE]
        place = int(since.argmax())
        held_s = 1e-9 * (time.monotonic_ns() - int(since[place]))
        return place if since[place] and held_s >= least_s else None

    def explain(self, cause: WorkerError, beat: Heartbeat) -> WorkerError | None:
        """Say where a worker was when it failed, with what a repro bundle needs; None if nobody knows."""
        if not beat.beats:
            return None
        seed = None if beat.seed < 0 else beat.seed
        step = max(beat.step, 0)
        actions: list[Any] | None = []
        doing = "in reset()"
        if beat.step != RESETTING:
            actions = self._board.actions_of(beat.env_id, step)
            doing = f"the action was {actions[-1] if actions else '?'}"
        where = f"environment {beat.env_id}, seed {seed}, episode {beat.episode}, step {step}"
        failure = type(cause)(f"{where}: {cause}; {doing}")
        place = {"env_index": beat.env_id, "episode": beat.episode, "seed": seed, "step": step}
        failure.facts = {**place, "actions": actions, "stage": None if beat.stage < 0 else beat.stage}
        return failure
