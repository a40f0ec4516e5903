"""The event loop of this process, and plain code that waits on it.

The loop runs in a thread of its own from its first use on, so that what environments left going on it (a
connection, a heartbeat) goes on between their steps. Plain code that a PlainCaller calls there waits with
`wait_for` and lets others run meanwhile, as a coroutine would. In any other thread a CallLine blocks it.
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

_PUNCTUAL_S = 0.1  # timers that are farther away may be late
_MOST_FILES = 1024  # that `select` can tell apart
_SHORTEST_S = 0.0003  # a wait; what is due meanwhile is done together


class Call(NamedTuple):
    """A coroutine of an environment; limit_s: that it may take by itself, where it is not part of a longer
    call."""

    coroutine: Coroutine[Any, Any, Any]
    limit_s: float | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.coroutine.__await__()


class CancelledCall(Exception):
    """A coroutine was cancelled, by itself or by another of its environment's."""


def _make_loop() -> asyncio.AbstractEventLoop:
    """A loop whose timers are punctual: `epoll` waits for whole milliseconds, a twentieth of a wait of 20 ms,
    while `select` on its descriptor waits for microseconds."""
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
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()  # returns if somebody stops it: it is not theirs to stop
            except BaseException:  # noqa: BLE001  border: a task that an environment began
                traceback.print_exc()
                sys.stderr.flush()

    def is_here(self) -> bool:
        """Whether this thread runs the loop."""
        return threading.current_thread() is self.thread

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Let a coroutine run; from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


_running: EventLoop | None = None
_making = threading.Lock()


def find_loop() -> EventLoop:
    """This process's loop; a process that was forked from one with a loop gets its own."""
    global _running
    with _making:
        if _running is None or _running.pid != os.getpid():
            _running = EventLoop()
        return _running


class _Plain(greenlet):  # type: ignore[misc]
    """Plain code on the loop: it is put aside where it waits."""


Wait = Callable[[Awaitable[Any]], Awaitable[Any]]
_OVER = object()


class PlainCaller:
    """Calls plain code on the loop, one function after the other; made in the loop's thread.

    Its greenlet is kept: to make one takes twenty times as long as to go on with it. wait: awaits what the
    code waits for.
    """

    def __init__(self, wait: Wait) -> None:
        self._wait = wait
        self._code = _Plain(self._serve)
        self._given: Any = None
        self._failure: BaseException | None = None

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What the function gives; it may wait."""
        code = self._code
        asked = code.switch(function, args)
        while asked is not _OVER:
            try:
                answer = await self._wait(asked)
            except BaseException as error:  # noqa: BLE001  told to who waits for it
                asked = code.throw(error)
            else:
                asked = code.switch(answer)
        if self._failure is None:
            return self._given
        failure, self._failure = self._failure, None
        try:
            raise failure
        finally:
            del failure  # it holds this frame

    def _serve(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        home = getcurrent().parent
        assert home is not None
        while True:
            try:
                self._given = function(*args)
            except BaseException as error:  # noqa: BLE001  raised by `call`
                self._failure = error
            function, args = home.switch(_OVER)


def waits_on_loop() -> bool:
    """Whether this is plain code on the loop."""
    return isinstance(getcurrent(), _Plain)


def wait_for(awaitable: Awaitable[Any]) -> Any:
    """Wait in plain code on the loop; others run meanwhile."""
    parent = getcurrent().parent
    assert parent is not None
    return parent.switch(awaitable)


@types.coroutine
def time_turns(coroutine: Coroutine[Any, Any, Any], marks: memoryview) -> Generator[Any, Any, Any]:
    """Await a coroutine and time its turns at the loop. marks: when the one that lasts began (monotonic_ns,
    else 0), and the nanoseconds of all so far."""
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
        except BaseException as error:  # noqa: BLE001  it is the coroutine's to handle
            thrown = error


_line_marks = memoryview(array("q", [0, 0]))


def read_held_s() -> float:
    """Seconds that coroutines of this process have held the loop while a thread waited for them: as long as
    one holds it, no other can run."""
    return 1e-9 * float(_line_marks[1])


class CallLine:
    """Coroutines that other threads wait for, awaited one after the other by one task of the loop: what one
    of them enters, another can leave."""

    def __init__(self) -> None:
        self._home = find_loop()
        self._calls: asyncio.Queue[tuple[Coroutine[Any, Any, Any], Future[Any]] | None] = asyncio.Queue()
        self._task: asyncio.Task[Any] | None = None
        self._home.begin(self._serve())

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Wait for it in this thread."""
        if self._home.is_here():
            raise RuntimeError("a coroutine of the event loop can't wait for another one in plain code")
        done: Future[Any] = Future()
        self._put((coroutine, done))
        try:
            return done.result()
        except KeyboardInterrupt:  # of this thread: what was waited for must not hold up the end
            self._home.loop.call_soon_threadsafe(self._cancel)
            raise

    def close(self) -> None:
        """End the task once all is done."""
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
            except asyncio.CancelledError:  # who cancels all tasks means others
                task.uncancel()
                continue
            if item is None:
                return
            coroutine, done = item
            try:
                result = await _guard(time_turns(coroutine, _line_marks))
            except BaseException as error:  # noqa: BLE001  border: the user's coroutine
                done.set_exception(error)
            else:
                done.set_result(result)


async def _guard(awaitable: Awaitable[Any]) -> Any:
    """Await what an environment gave; what would end the task or the loop becomes an ordinary exception."""
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
