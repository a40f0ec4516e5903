"""Threads that share short tasks: the caller and its helpers take tasks until none is left.

Waking a thread takes as long as such a task, so a helper first spins for about half a millisecond, without
the GIL, and only then sleeps. A helper that sleeps or comes late delays nothing: the others take its tasks.
One task per thread may wait for the others, because every thread wakes up.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from mission_gym.compiled import atomic_add, atomic_read, entry, yield_core
from mission_gym.data import Array

Result = TypeVar("Result")

# Numbers of started rounds and of finished tasks, each in its own cache line.
_ROUND, _DONE, _NUM_COUNTERS = 0, 16, 32
_SPINS = 500_000  # about half a millisecond
_YIELD_EVERY = 1024  # spins


@entry
def _count(counters: Array, index: int) -> None:
    atomic_add(counters, index, 1)


@entry
def _await(counters: Array, index: int, number: int, spins: int) -> int:
    """Return a counter when it has reached the number, or after `spins` reads."""
    for spin in range(spins):
        if atomic_read(counters, index) >= number:
            break
        if spin % _YIELD_EVERY == _YIELD_EVERY - 1:
            yield_core()
    return int(atomic_read(counters, index))


class _Shared:
    """The state that the threads share; it does not reference the team, so that the team can be collected."""

    def __init__(self) -> None:
        self.counters = np.zeros(_NUM_COUNTERS, np.int64)
        self.tasks: list[tuple[int, Callable[[], Any]]] = []  # taken from the end
        self.results: list[Any] = []
        self.error: BaseException | None = None
        self.sleepers: list[threading.Event] = []
        self.closed = False

    def work(self) -> None:
        """Take tasks until none is left."""
        tasks, results = self.tasks, self.results
        while tasks:
            try:
                index, task = tasks.pop()
            except IndexError:  # another thread was faster
                return
            try:
                results[index] = task()
            except BaseException as error:  # noqa: BLE001  border: a thread; raised by `run`
                self.error = error
            _count(self.counters, _DONE)

    def help(self) -> None:
        """Run a helper thread."""
        awake, seen = threading.Event(), 0
        while not self.closed:
            number = _await(self.counters, _ROUND, seen + 1, _SPINS)
            if number > seen:
                seen = number
                self.work()
                continue
            awake.clear()
            self.sleepers.append(awake)
            # A round may have started before it was in the list.
            if not self.closed and _await(self.counters, _ROUND, seen + 1, 0) == seen:
                awake.wait()

    def wake(self) -> None:
        while self.sleepers:
            self.sleepers.pop().set()

    def close(self) -> None:
        self.closed = True
        self.wake()


class Team:
    """`num_helpers` threads and the caller of `run`; the threads end with `close` or with the team."""

    def __init__(self, num_helpers: int, name: str) -> None:
        self._shared = shared = _Shared()
        self._num_done = 0  # tasks at the end of the current round
        with suppress(RuntimeError):  # the system refuses a thread: the others take its tasks
            for _ in range(num_helpers):
                threading.Thread(target=shared.help, name=name, daemon=True).start()
        self.close: Callable[[], Any] = weakref.finalize(self, shared.close)

    def run(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run the tasks and return their results in order; raises the exception of a task."""
        if len(tasks) == 1:
            return [tasks[0]()]
        shared = self._shared
        shared.results, shared.error = [None] * len(tasks), None
        self._num_done += len(tasks)
        shared.tasks = list(enumerate(tasks))[::-1]  # helpers may take them from now on
        _count(shared.counters, _ROUND)
        shared.wake()
        shared.work()
        while _await(shared.counters, _DONE, self._num_done, _SPINS) < self._num_done:
            pass  # a helper is still working
        if shared.error is not None:
            raise shared.error
        return shared.results
