"""Threads that share short work: the caller and its helpers take tasks until none is left.

To wake a thread takes as long as such a task, so a helper first looks for the next round for about half a
millisecond, without the GIL, and only then sleeps. Nobody waits for a helper that sleeps or comes late: the
others take its tasks. Up to one task for each thread may wait for each other, as every thread wakes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from mission_gym.compiled import atomic_add, atomic_read, entry, yield_core
from mission_gym.data import Array

Result = TypeVar("Result")

# Rounds begun and tasks done since the start, in cache lines of their own.
_ROUND, _DONE, _NUM_COUNTERS = 0, 16, 32
_LOOKS = 500_000  # about half a millisecond
_YIELD_EVERY = 1024  # looks


@entry
def _count(counters: Array, place: int) -> None:
    atomic_add(counters, place, 1)


@entry
def _await(counters: Array, place: int, number: int, looks: int) -> int:
    """The counter, once it has reached the number or after so many looks."""
    for look in range(looks):
        if atomic_read(counters, place) >= number:
            break
        if look % _YIELD_EVERY == _YIELD_EVERY - 1:
            yield_core()
    return int(atomic_read(counters, place))


class _Board:
    """What the threads of a team share; they must not keep the team itself alive."""

    def __init__(self) -> None:
        self.counters = np.zeros(_NUM_COUNTERS, np.int64)
        self.tasks: list[tuple[int, Callable[[], Any]]] = []  # to be taken from the end
        self.results: list[Any] = []
        self.error: BaseException | None = None
        self.sleepers: list[threading.Event] = []
        self.closed = False

    def work(self) -> None:
        """Take tasks until none is left."""
        tasks, results = self.tasks, self.results
        while tasks:
            try:
                place, task = tasks.pop()
            except IndexError:  # another thread was faster
                return
            try:
                results[place] = task()
            except BaseException as error:  # noqa: BLE001  border: a thread; raised by `run`
                self.error = error
            _count(self.counters, _DONE)

    def help(self) -> None:
        """What a helper does."""
        awake, seen = threading.Event(), 0
        while not self.closed:
            number = _await(self.counters, _ROUND, seen + 1, _LOOKS)
            if number > seen:
                seen = number
                self.work()
                continue
            awake.clear()
            self.sleepers.append(awake)
            # Else it may have been too late to be woken.
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
        self._board = board = _Board()
        self._num_done = 0  # tasks, once the round under way is over
        for _ in range(num_helpers):
            threading.Thread(target=board.help, name=name, daemon=True).start()
        self.close: Callable[[], Any] = weakref.finalize(self, board.close)

    def run(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """Do the tasks, and return their results in order; raises what one of them raised."""
        if len(tasks) == 1:
            return [tasks[0]()]
        board = self._board
        board.results, board.error = [None] * len(tasks), None
        self._num_done += len(tasks)
        board.tasks = list(enumerate(tasks))[::-1]  # from now on they are taken
        _count(board.counters, _ROUND)
        board.wake()
        board.work()
        while _await(board.counters, _DONE, self._num_done, _LOOKS) < self._num_done:
            pass  # a helper is at work
        if board.error is not None:
            raise board.error
        return board.results
