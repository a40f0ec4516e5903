"""Environments whose steps are coroutines, hundreds of them in flight on one event loop.

Each environment has a task of its own, in which all its coroutines are awaited; what stands around them
(slots, wrappers, collectors) is plain code on the loop (`env/event_loop`). So the transitions are those of
SerialVec. One that does not return in time is cancelled, alone; one that blocks the loop is found by whoever
reads the gauges (`HELD_SINCE`), and by `vector/loop_watch`, which names it where it only slows the others.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from pathlib import PurePath
from typing import Any

from mission_gym.env.event_loop import (
    CancelledCall,
    LimitedCall,
    PlainCaller,
    find_loop,
    time_turns,
    wait_for,
    waits_on_loop,
)
from mission_gym.env.slot import EnvSlot
from mission_gym.vector.gauges import HELD_NS, HELD_SINCE
from mission_gym.vector.loop_watch import LoopWatch
from mission_gym.vector.side_by_side import Job, SideBySideVec

_SWEEP_S = 0.25  # between two looks for what is late


class AioVec(SideBySideVec):
    """A SideBySideVec of tasks."""

    grace_s = 5.0

    def __init__(
        self, *args: Any, watch: Callable[[EnvSlot, Any], None] = lambda slot, action: None, **options: Any
    ) -> None:
        self._home = find_loop()
        self._tell = watch
        self._tasks: list[_EnvTask] = []
        self._idle: list[PlainCaller] = []
        super().__init__(*args, watch=self._note, **options)
        self._tasks = [_EnvTask(slot, row) for slot, row in zip(self._slots, self._gauges, strict=True)]
        self._home.begin(self._start()).result()
        self._is_serving = True

    async def _start(self) -> None:
        for each in self._tasks:
            each.task = asyncio.ensure_future(self._serve(each))
        self._sweeper = asyncio.ensure_future(self._sweep())

    def _note(self, slot: EnvSlot, action: Any) -> None:
        """What comes next has its own deadline."""
        self._tell(slot, action)
        if self._tasks:
            limit_s = self._reset_timeout_s if action is None else self._timeout_s
            self._tasks[slot.env_id - self._first_id].expect(limit_s)

    def _make(self, job: Job) -> None:
        if self._home.is_here():
            made = self._home.loop.create_future()
            job.done = lambda: made.set_result(None)
            self._set_going(job)
            wait_for(made)
        else:
            done = threading.Lock()
            done.acquire()
            job.done = done.release
            self._home.loop.call_soon_threadsafe(self._set_going, job)
            done.acquire()

    def _set_going(self, job: Job) -> None:
        for row, place in enumerate(job.ids):
            self._tasks[place].give(job, row)

    def spawn(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        return self._home.begin(self._call(function, args))

    async def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        caller = self._idle.pop() if self._idle else PlainCaller(_outlast)
        try:
            return await caller.call(function, *args)
        finally:
            self._idle.append(caller)

    async def _serve(self, own: _EnvTask) -> None:
        """What the task of one environment does."""
        caller = PlainCaller(own.wait)
        while True:
            job, row = await own.take()
            if job is None:
                return
            if not job.is_step:
                own.expect(self._reset_timeout_s)  # of whatever has no deadline of its own
            try:
                job.given[row] = await caller.call(job.work, own.slot, row)
            except BaseException as error:  # noqa: BLE001  border: a task; told to whoever waits
                job.failure = error
            self._rest(own.slot)
            job.leave()

    async def _sweep(self) -> None:
        """Look for what is late, and for what blocks the loop, a few times a second."""
        watch = LoopWatch([each.slot.env_id for each in self._tasks], self._gauges)
        while self._tasks:
            await _outlast(asyncio.sleep(_SWEEP_S))
            watch.look()
            now = time.monotonic()
            for each in self._tasks:
                each.end_if_late(now)

    def _pause(self, seconds: float) -> None:
        if waits_on_loop():
            wait_for(asyncio.sleep(seconds))
        else:
            super()._pause(seconds)

    def _close(self) -> list[str]:
        errors = super()._close()
        self._is_serving = False
        tasks, self._tasks = self._tasks, []
        for each in tasks:
            self._home.loop.call_soon_threadsafe(each.give, None, 0)
        return errors


class _EnvTask:
    """The task in which everything of one environment is awaited: its next job, and the deadline of the call
    that is under way."""

    task: asyncio.Task[None]

    def __init__(self, slot: EnvSlot, gauges: memoryview) -> None:
        self.slot = slot
        self._marks = gauges[HELD_SINCE : HELD_NS + 1]
        self._job: tuple[Job | None, int] | None = None
        self._gate: asyncio.Future[None] | None = None
        self._since = 0.0
        self._limit_s = 0.0
        self._call: LimitedCall | None = None
        self._call_since = 0.0
        self._lateness = ""  # why the call was cancelled from here

    def give(self, job: Job | None, row: int) -> None:
        """Let the task do a job; None ends it."""
        self._job = job, row
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)

    async def take(self) -> tuple[Job | None, int]:
        """The next job."""
        while self._job is None:
            self._gate = asyncio.get_running_loop().create_future()
            try:
                await self._gate
            except asyncio.CancelledError:  # who cancels all tasks of the loop means its own
                _forget_cancelling()
        job, self._job = self._job, None
        return job

    def expect(self, limit_s: float) -> None:
        """The step or reset that begins now may take so long."""
        self._since, self._limit_s = time.monotonic(), limit_s

    async def wait(self, asked: Awaitable[Any]) -> Any:
        """Await what the plain code of this environment waits for; what would end the task becomes an
        ordinary exception."""
        if not isinstance(asked, LimitedCall):
            return await _outlast(asked)
        self._call, self._call_since = asked, time.monotonic()
        try:
            return await time_turns(asked.coroutine, self._marks)
        except asyncio.CancelledError as error:
            if self._lateness:
                raise TimeoutError(self._lateness) from error
            raise CancelledCall("it was cancelled") from error
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"it raised {type(error).__name__}") from error
        finally:
            self._call = None
            if self.task.cancelling():  # also where the coroutine did not care
                self._lateness = ""
                _forget_cancelling()

    def end_if_late(self, now: float) -> None:
        """Cancel the call that is under way if its time is over; once, so that it may tidy up."""
        call = self._call
        if call is None or self._lateness:
            return
        since, limit_s = self._since, self._limit_s
        if call.limit_s is not None:
            since, limit_s = self._call_since, call.limit_s
        if now - since > limit_s:
            where = find_place(call.coroutine)
            self._lateness = f"it did not return within {limit_s:g} s [--env-timeout]{where}"
            self.task.cancel()


async def _outlast(asked: Awaitable[Any]) -> Any:
    """Await what is ours, whoever cancels all tasks of the loop."""
    future = asyncio.ensure_future(asked)
    while True:
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            _forget_cancelling()
            if future.cancelled():
                return None


def _forget_cancelling() -> None:
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass


def find_place(coroutine: Coroutine[Any, Any, Any]) -> str:
    """Where a coroutine waits: the innermost line of its own file."""
    frame, inner = getattr(coroutine, "cr_frame", None), getattr(coroutine, "cr_await", None)
    while frame is not None and (deeper := getattr(inner, "cr_frame", None)) is not None:
        if deeper.f_code.co_filename == frame.f_code.co_filename:
            frame = deeper
        inner = getattr(inner, "cr_await", None)
    if frame is None:
        return ""
    code = frame.f_code
    return f", waiting in {code.co_name} at {PurePath(code.co_filename).name}:{frame.f_lineno}"
