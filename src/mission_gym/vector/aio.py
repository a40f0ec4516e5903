"""Environments whose steps are coroutines, hundreds of them in flight on one event loop.

Each environment has one task, in which all its coroutines are awaited. Slots, wrappers and collectors are
plain code on the loop (`env/event_loop`), so transitions equal those of SerialVec. A step that is late is
cancelled alone. The heartbeat monitor finds an environment that blocks the loop for long (`HELD_SINCE`), and
`LoopWatch` one that only slows the others.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from pathlib import PurePath
from typing import Any

from mission_gym.env import event_loop
from mission_gym.env.event_loop import (
    CancelledCall,
    LimitedCall,
    PlainCaller,
    find_loop,
    time_turns,
    wait_for,
    waits_on_loop,
)
from mission_gym.env.pace import read_queued_s
from mission_gym.env.slot import EnvSlot
from mission_gym.vector.arrays import BLOCKED_NS, HELD_NS, HELD_SINCE
from mission_gym.vector.concurrent import ConcurrentVec, Fanout

BLOCKED_SHARE = 0.3  # of the time, held without computing: reported as blocking
_CHECK_S = 0.25  # between two checks for late steps
_SAMPLE_S, _NUM_SAMPLES = 0.001, 3000
_TURNS_FILE = event_loop.__file__  # its lines call the code of environments


class AioVec(ConcurrentVec):
    """A ConcurrentVec of tasks."""

    grace_s = 5.0

    def __init__(self, *args: Any, **options: Any) -> None:
        self._home = find_loop()
        self._tasks: list[_EnvTask] = []
        self._idle: list[PlainCaller] = []
        super().__init__(*args, **options)
        self._report_start, self._on_start = self._on_start, self._note_start
        self._tasks = [
            _EnvTask(slot, counters) for slot, counters in zip(self._slots, self._counters, strict=True)
        ]
        self._home.begin(self._start()).result()
        self._is_serving = True

    async def _start(self) -> None:
        for each in self._tasks:
            each.task = asyncio.ensure_future(self._serve(each))
        self._checker = asyncio.ensure_future(self._check_often())

    def _note_start(self, slot: EnvSlot, action: Any) -> None:
        """Set the deadline of the next step or reset."""
        if self._report_start is not None:
            self._report_start(slot, action)
        if self._tasks:
            limit_s = self._limits.reset_timeout_s if action is None else self._limits.timeout_s
            self._tasks[slot.env_id - self._first_id].set_deadline(limit_s)

    def _run(self, fanout: Fanout) -> None:
        if self._home.is_here():
            ended = self._home.loop.create_future()
            fanout.done = lambda: ended.set_result(None)
            self._give(fanout)
            wait_for(ended)
        else:
            done = threading.Lock()
            done.acquire()
            fanout.done = done.release
            self._home.loop.call_soon_threadsafe(self._give, fanout)
            done.acquire()

    def _give(self, fanout: Fanout) -> None:
        for row, index in enumerate(fanout.ids):
            self._tasks[index].give(fanout, row)

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        return self._home.begin(self._call(function, args))

    async def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        caller = self._idle.pop() if self._idle else PlainCaller(_shield)
        try:
            return await caller.call(function, *args)
        finally:
            self._idle.append(caller)

    async def _serve(self, own: _EnvTask) -> None:
        """The task of one environment."""
        caller = PlainCaller(own.wait)
        while True:
            fanout, row = await own.take()
            if fanout is None:
                return
            if not fanout.is_step:
                own.set_deadline(self._limits.reset_timeout_s)  # of calls without their own deadline
            await caller.call(fanout.call, own.slot, row)
            self._on_end(own.slot)
            fanout.leave()

    async def _check_often(self) -> None:
        """Cancel late steps and find what blocks the loop, a few times per second."""
        watch = LoopWatch([each.slot.env_id for each in self._tasks], self._counters)
        while self._tasks:
            await _shield(asyncio.sleep(_CHECK_S))
            watch.check()
            now = time.monotonic()
            for each in self._tasks:
                each.cancel_if_late(now)

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
    """The task that awaits everything of one environment: its next call, and the deadline of the current
    one."""

    task: asyncio.Task[None]

    def __init__(self, slot: EnvSlot, counters: memoryview) -> None:
        self.slot = slot
        self._marks = counters[HELD_SINCE : HELD_NS + 1]
        self._next: tuple[Fanout | None, int] | None = None
        self._gate: asyncio.Future[None] | None = None
        self._since = 0.0
        self._limit_s = 0.0
        self._call: LimitedCall | None = None
        self._call_since = 0.0
        self._lateness = ""  # why this task was cancelled from here

    def give(self, fanout: Fanout | None, row: int) -> None:
        """Give the task its next call; None ends it."""
        self._next = fanout, row
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)

    async def take(self) -> tuple[Fanout | None, int]:
        """Wait for the next call."""
        while self._next is None:
            self._gate = asyncio.get_running_loop().create_future()
            try:
                await self._gate
            except asyncio.CancelledError:  # code that cancels all tasks of the loop means its own
                _clear_cancellation()
        given, self._next = self._next, None
        return given

    def set_deadline(self, limit_s: float) -> None:
        """Limit the step or reset that begins now."""
        self._since, self._limit_s = time.monotonic(), limit_s

    async def wait(self, awaited: Awaitable[Any]) -> Any:
        """Await for the plain code of this environment. Exceptions that would end the task become ordinary
        ones."""
        if not isinstance(awaited, LimitedCall):
            return await _shield(awaited)
        self._call, self._call_since = awaited, time.monotonic()
        try:
            return await time_turns(awaited.coroutine, self._marks)
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
            if self.task.cancelling():  # also if the coroutine ignored it
                self._lateness = ""
                _clear_cancellation()

    def cancel_if_late(self, now: float) -> None:
        """Cancel the current call after its deadline, once, so that it can clean up."""
        call = self._call
        if call is None or self._lateness:
            return
        since, limit_s = self._since, self._limit_s
        if call.limit_s is not None:
            since, limit_s = self._call_since, call.limit_s
        if now - since > limit_s:
            where = find_await(call.coroutine)
            self._lateness = f"it did not return within {limit_s:g} s [--env-timeout]{where}"
            self.task.cancel()


async def _shield(awaited: Awaitable[Any]) -> Any:
    """Await our own code, even if an environment cancels all tasks of the loop."""
    future = asyncio.ensure_future(awaited)
    while True:
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            _clear_cancellation()
            if future.cancelled():
                return None


def _clear_cancellation() -> None:
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass


def find_await(coroutine: Coroutine[Any, Any, Any]) -> str:
    """The line at which a coroutine waits: the innermost one in its own file."""
    frame, inner = getattr(coroutine, "cr_frame", None), getattr(coroutine, "cr_await", None)
    while frame is not None and (deeper := getattr(inner, "cr_frame", None)) is not None:
        if deeper.f_code.co_filename == frame.f_code.co_filename:
            frame = deeper
        inner = getattr(inner, "cr_await", None)
    if frame is None:
        return ""
    code = frame.f_code
    return f", waiting in {code.co_name} at {PurePath(code.co_filename).name}:{frame.f_lineno}"


class LoopWatch:
    """Finds environments that block the event loop while the processor idles, with `time.sleep` or
    `requests`: their turns take longer than they compute.

    It runs in the loop's thread. The environment with the longest turns is reported once in the process's
    output, with its line, and to the parent by the counter BLOCKED_NS.
    """

    def __init__(self, env_ids: Sequence[int], counters: Sequence[memoryview]) -> None:
        self._env_ids, self._counters = env_ids, counters
        self._held_ns = [row[HELD_NS] for row in counters]
        self._wall_s, self._busy_s = time.monotonic(), _read_busy_s()
        self._has_reported = False

    def check(self) -> None:
        """Judge the time since the last check."""
        wall_s, busy_s = time.monotonic(), _read_busy_s()
        held_ns = [row[HELD_NS] for row in self._counters]
        turns = [now - before for now, before in zip(held_ns, self._held_ns, strict=True)]
        idle_s = 1e-9 * sum(turns) - (busy_s - self._busy_s)
        share = idle_s / (wall_s - self._wall_s)
        if share > BLOCKED_SHARE:
            worst = max(range(len(turns)), key=turns.__getitem__)
            self._counters[worst][BLOCKED_NS] += int(1e9 * idle_s)
            if not self._has_reported:
                self._has_reported = True
                arguments = (worst, share, threading.get_ident())
                threading.Thread(target=self._report, args=arguments, daemon=True).start()
        self._held_ns, self._wall_s, self._busy_s = held_ns, wall_s, busy_s

    def _report(self, worst: int, share: float, loop_thread: int) -> None:
        """Wait for the next long turn, and print its line."""
        line = ""
        for _ in range(_NUM_SAMPLES):
            time.sleep(_SAMPLE_S)
            since = max(row[HELD_SINCE] for row in self._counters)
            if since and time.monotonic_ns() - since > 1e9 * _SAMPLE_S:
                line = find_blocking_line(loop_thread)
                break
        sys.stderr.write(
            f"environment {self._env_ids[worst]} blocks the event loop, on which all others wait: for "
            f"{100 * share:.0f} % of the time it held it without computing{line}; await instead, or use"
            " --vector threads\n"
        )
        sys.stderr.flush()


def find_blocking_line(thread: int) -> str:
    """The line of an environment that a thread is at: the innermost one in the file in which its turn
    began."""
    frame = sys._current_frames().get(thread)
    stack = traceback.extract_stack(frame) if frame is not None else []
    begun = [index for index, entry in enumerate(stack) if entry.filename == _TURNS_FILE]
    inside = stack[begun[-1] + 1 :] if begun else []
    own = [entry for entry in inside if entry.filename == inside[0].filename]
    if not own:
        return ""
    return f", at {PurePath(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}: {own[-1].line}"


def _read_busy_s() -> float:
    """Seconds that this process computed, or that this thread was ready to and had no core."""
    return time.process_time() + read_queued_s(f"self/task/{threading.get_native_id()}")
