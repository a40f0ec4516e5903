"""The event loop of this process, and plain code that waits on it.

The loop runs in its own thread from its first use on, so that background tasks of environments (a connection,
a heartbeat) continue between their steps. Plain code that a PlainCaller runs on the loop waits with
`wait_for`, and other tasks run meanwhile, as with a coroutine. In any other thread a CallQueue blocks the
caller.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
import threading
import traceback
import types
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from time import monotonic_ns
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet

from mission_gym.procs.start import explain_refusal

_PUNCTUAL_S = 0.1  # later timers may be late
_MOST_FILES = 1024  # descriptors that `select` supports
_SHORTEST_S = 0.0003  # of a wait; everything that is due meanwhile is done together


class LimitedCall(NamedTuple):
    """A coroutine of an environment; limit_s: its own time limit, if it is not part of a longer call."""

    coroutine: Coroutine[Any, Any, Any]
    limit_s: float | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.coroutine.__await__()


class CancelledCall(Exception):
    """A coroutine was cancelled, by itself or by another coroutine of its environment."""


def _make_loop() -> asyncio.AbstractEventLoop:
    """Make a loop with precise timers: `epoll` waits for whole milliseconds, which is much for a wait of 20
    ms, but `select` on its descriptor waits for microseconds."""
    if sys.platform != "linux":
        return asyncio.new_event_loop()

    class Punctual(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> Any:
            if timeout is not None and 0 < timeout < _PUNCTUAL_S and self.fileno() < _MOST_FILES:
                select.select([self.fileno()], (), (), max(timeout, _SHORTEST_S))
                timeout = 0
            return super().select(timeout)

    return asyncio.SelectorEventLoop(Punctual())


class EventLoop:
    """A loop that runs until the process ends."""

    def __init__(self) -> None:
        self.loop = _make_loop()
        self.pid = os.getpid()
        self.thread = threading.Thread(target=self._run, name="event loop", daemon=True)
        with explain_refusal():
            self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()  # returns if an environment stops it, which it must not
            except BaseException:  # noqa: BLE001  border: a task of an environment
                traceback.print_exc()
                sys.stderr.flush()

    def is_here(self) -> bool:
        """Return whether this thread runs the loop."""
        return threading.current_thread() is self.thread

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a coroutine; from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


_running: EventLoop | None = None
_making = threading.Lock()


def find_loop() -> EventLoop:
    """Return this process's loop; a forked process gets its own."""
    global _running
    with _making:
        if _running is None or _running.pid != os.getpid():
            _running = EventLoop()
        return _running


class _PlainCode(greenlet):  # type: ignore[misc]
    """Plain code on the loop: it is suspended while it waits."""


Wait = Callable[[Awaitable[Any]], Awaitable[Any]]
_OVER = object()


class PlainCaller:
    """Calls plain code on the loop, one function after the other; must be made in the loop's thread.

    Its greenlet is reused, because making one takes twenty times as long as resuming it. wait: awaits the
    awaitables that the code waits for.
    """

    def __init__(self, wait: Wait) -> None:
        self._wait = wait
        self._code = _PlainCode(self._serve)
        self._result: Any = None
        self._failure: BaseException | None = None

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of the function, which may wait."""
        code = self._code
        asked = code.switch(function, args)
        while asked is not _OVER:
            try:
                answer = await self._wait(asked)
            except BaseException as error:  # noqa: BLE001  raised in the code that waits
                asked = code.throw(error)
            else:
                asked = code.switch(answer)
        if self._failure is None:
            return self._result
        failure, self._failure = self._failure, None
        try:
            raise failure
        finally:
            del failure  # it references this frame

    def _serve(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        home = getcurrent().parent
        assert home is not None
        while True:
            try:
                self._result = function(*args)
            except BaseException as error:  # noqa: BLE001  raised by `call`
                self._failure = error
            function, args = home.switch(_OVER)


def waits_on_loop() -> bool:
    """Return whether this is plain code on the loop."""
    return isinstance(getcurrent(), _PlainCode)


def wait_for(awaitable: Awaitable[Any]) -> Any:
    """Wait in plain code on the loop; other tasks run meanwhile."""
    parent = getcurrent().parent
    assert parent is not None
    return parent.switch(awaitable)


@types.coroutine
def time_turns(coroutine: Coroutine[Any, Any, Any], marks: memoryview) -> Generator[Any, Any, Any]:
    """Await a coroutine and time its turns on the loop.

    marks: the start of the current turn (monotonic_ns, 0 without one), and the nanoseconds of all turns.
    """
    answer, thrown = None, None
    while True:
        marks[0] = begun = monotonic_ns()
        try:
            asked = coroutine.send(answer) if thrown is None else coroutine.throw(thrown)
        except StopIteration as stop:
            return stop.value
        finally:
            marks[1] += monotonic_ns() - begun
            marks[0] = 0
        try:
            answer, thrown = (yield asked), None
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001  the coroutine handles it
            thrown = error


_queue_marks = memoryview(array("q", [0, 0]))


def read_held_s() -> float:
    """Return the seconds that coroutines of a CallQueue have held the loop, so that no other could run."""
    return 1e-9 * float(_queue_marks[1])


class CallQueue:
    """Coroutines that other threads wait for, awaited one after the other by the same task of the loop, so
    that one can leave a context that another has entered."""

    def __init__(self) -> None:
        self._home = find_loop()
        self._calls: asyncio.Queue[tuple[Coroutine[Any, Any, Any], Future[Any]] | None] = asyncio.Queue()
        self._task: asyncio.Task[Any] | None = None
        self._home.begin(self._serve())

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a coroutine in this thread."""
        if self._home.is_here():
            raise RuntimeError("plain code on the event loop can't block for a coroutine")
        done: Future[Any] = Future()
        self._put((coroutine, done))
        try:
            return done.result()
        except KeyboardInterrupt:  # in this thread: the coroutine must not delay the end
            self._home.loop.call_soon_threadsafe(self._cancel)
            raise

    def close(self) -> None:
        """End the task after the last call."""
        self._put(None)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _put(self, item: tuple[Coroutine[Any, Any, Any], Future[Any]] | None) -> None:
        self._home.loop.call_soon_threadsafe(self._calls.put_nowait, item)

    async def _serve(self) -> None:
        self._task = task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                item = await self._calls.get()
            except asyncio.CancelledError:  # an environment that cancels all tasks means its own
                task.uncancel()
                continue
            if item is None:
                return
            coroutine, done = item
            try:
                result = await _guard(time_turns(coroutine, _queue_marks))
            except BaseException as error:  # noqa: BLE001  border: the user's coroutine
                done.set_exception(error)
            else:
                done.set_result(result)


async def _guard(awaitable: Awaitable[Any]) -> Any:
    """Await a coroutine; exceptions that would end the task or the loop become ordinary ones."""
    try:
        return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None:
            while task.uncancel():
                pass
        raise CancelledCall("it was cancelled") from error
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"it raised {type(error).__name__}") from error
