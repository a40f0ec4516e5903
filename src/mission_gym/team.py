"""Threads that share short work: the caller and its helpers take tasks until none is left.

To wake a thread takes as long as such a task, so a helper first looks for the next round for about half a
millisecond, without the GIL, and only then sleeps. Nobody waits for a helper that sleeps or comes late: the
others take its tasks. Up to one task for each thread may wait for each other, as every thread wakes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from mission_gym.compiled import atomic_add, atomic_read, entry
from mission_gym.data import Array

Result = TypeVar("Result")

# Rounds begun and tasks done since the start, in cache lines of their own.
_ROUND, _DONE, _NUM_COUNTERS = 0, 16, 32
_LOOKS = 1_500_000  # about half a millisecond


@entry
def _count(counters: Array, place: int) -> None:
    atomic_add(counters, place, 1)


@entry
def _await_round(counters: Array, seen: int, looks: int) -> int:
    """The number of the round, once it is not `seen` any more or after so many looks."""
    number = atomic_read(counters, _ROUND)
    while number == seen and looks > 0:
        number = atomic_read(counters, _ROUND)
        looks -= 1
    return int(number)


@entry
def _await_done(counters: Array, num_done: int, looks: int) -> bool:
    """Whether so many tasks are done, at once or within so many looks."""
    while atomic_read(counters, _DONE) < num_done and looks > 0:
        looks -= 1
    return bool(atomic_read(counters, _DONE) == num_done)


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
            number = _await_round(self.counters, seen, _LOOKS)
            if number != seen:
                seen = number
                self.work()
                continue
            awake.clear()
            self.sleepers.append(awake)
            # Else it may have been too late to be woken.
            if not self.closed and _await_round(self.counters, seen, 0) == seen:
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
        while not _await_done(board.counters, self._num_done, _LOOKS):
            time.sleep(0)  # a helper has a task in hand and no core
        if board.error is not None:
            raise board.error
        return board.results
