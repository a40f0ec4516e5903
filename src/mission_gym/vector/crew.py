"""The worker processes of a vector, seen from the parent: started, asked, watched, replaced.

Every wait sees death, silence and greed: a worker that ended, that made no step for `timeout_s`, or whose
memory passed its limit is ended with all it started, and a new one takes over its rows with new episodes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from mission_gym.errors import MissionGymError, WorkerDied, WorkerError, WorkerTimeout, describe
from mission_gym.procs import (
    BoundedLog,
    Child,
    Region,
    Spares,
    free_memory_bytes,
    usable_cores,
    wait_for_replies,
)
from mission_gym.vector import restarts
from mission_gym.vector.board import Heartbeat, SharedArrays
from mission_gym.vector.listening import Listener
from mission_gym.vector.restarts import Limits, RestartBudget
from mission_gym.vector.serial import SerialVec

_INSPECT_S = 0.25
_CLOSE_S = 5.0
_MEMORY_SHARE = 0.8  # of the memory free at the start, for all workers together


@dataclass(frozen=True, slots=True)
class Lost:
    """In place of a reply: the worker died over the command and was replaced."""

    failure: WorkerError


@dataclass(frozen=True, slots=True)
class Raised:
    """In place of a reply: what the worker raised over the command."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Note:
    """What a worker tells without being asked."""

    content: Any


class WorkerPool:
    """One Child per part of the rows. `begin` is called with the index of a worker that was replaced.

    kind: how workers step their environments; those that are stepped side by side are watched one by one.
    spares: children of the target to take first.
    """

    def __init__(
        self,
        target: str,
        setups: list[bytes],
        region: Region,
        board: SharedArrays,
        env_ids: list[range],
        limits: Limits,
        log: BoundedLog,
        *,
        kind: type[SerialVec] = SerialVec,
        spares: Spares | None = None,
    ) -> None:
        self.env_ids = env_ids
        self.size = len(setups)
        self.budget = RestartBudget(limits.max_restarts)
        self.num_restarts = 0
        # Set once there are episodes to go on with: the command for a new worker, and who takes its reply.
        self.begin_message: Callable[[int], Any] | None = None
        self.take_begun: Callable[[int, Any], None] = lambda worker, reply: None
        self._target, self._setups, self._spares = target, setups, spares
        self._region, self._log = region, log
        self._memory_limit = limits.memory_bytes or int(free_memory_bytes() * _MEMORY_SHARE / self.size)
        self._spin = usable_cores() > self.size
        self._inspected = time.monotonic()
        self._listener = Listener(board, env_ids, limits, kind)
        self._children: list[Child] = []
        try:
            self._children = [self._start(worker) for worker in range(self.size)]
            self._build(range(self.size))
        except BaseException:
            self.close()
            raise

    def send(self, worker: int, *message: Any) -> None:
        """Give a command; a worker that can't take it is found by the next wait."""
        self._listener.note_asked(worker)
        with contextlib.suppress(WorkerError):
            self._children[worker].send(message)

    def wait(self, workers: Iterable[int], timeout_s: float) -> list[tuple[int, Any]]:
        """Wait for replies or losses of these workers; empty if the time has passed.

        An error that a worker replies with is raised here.
        """
        found = self._hear(workers, timeout_s)
        for _, reply in found:
            if isinstance(reply, Raised):
                raise reply.error
        return found

    def _hear(self, workers: Iterable[int], timeout_s: float) -> list[tuple[int, Any]]:
        """As `wait`, with an error as a value."""
        by_child = {self._children[worker]: worker for worker in workers}
        end = time.monotonic() + timeout_s
        while True:
            left = max(0.0, min(end - time.monotonic(), _INSPECT_S))
            found: list[tuple[int, Any]] = []
            for child in wait_for_replies(by_child, left, spin=self._spin):
                worker = by_child[child]
                try:
                    found += [(worker, _open(reply)) for reply in child.take()]
                except WorkerDied as failure:
                    found.append((worker, self._replace(worker, failure)))
            replied = {worker for worker, _ in found}
            found += self.inspect([worker for worker in by_child.values() if worker not in replied])
            if found or time.monotonic() >= end:
                return found

    def ask(self, workers: Iterable[int], *message: Any, each: list[Any] | None = None) -> list[Any]:
        """Give all workers a command and wait for all replies, in order; a lost one is asked again.

        each: a further argument for every worker. The first error is raised when all have replied: else the
        other replies would be taken for those of the next command.
        """
        ids = list(workers)
        messages = {worker: (*message, *(() if each is None else each[i])) for i, worker in enumerate(ids)}
        for worker in ids:
            self.send(worker, *messages[worker])
        replies: dict[int, Any] = {}
        while len(replies) < len(ids):
            waiting = [worker for worker in ids if worker not in replies]
            for worker, reply in self._hear(waiting, _INSPECT_S):
                if isinstance(reply, Lost):
                    self.send(worker, *messages[worker])
                elif not isinstance(reply, Note):  # of what nobody waits for any more
                    replies[worker] = reply
        for reply in replies.values():
            if isinstance(reply, Raised):
                raise reply.error
        return [replies[worker] for worker in ids]

    def pids(self) -> list[int]:
        """The processes, for diagnostics."""
        return [child.pid for child in self._children]

    def close(self) -> list[str]:
        """End every worker and all it started; returns what went wrong while environments were closed."""
        problems: list[str] = []
        waiting = {}
        for child in self._children:
            with contextlib.suppress(WorkerError):
                child.send(("close",), timeout_s=0.2)
                waiting[child] = True
        end = time.monotonic() + _CLOSE_S
        while waiting and time.monotonic() < end:
            for child in wait_for_replies(waiting, max(0.0, end - time.monotonic())):
                try:
                    for reply in child.take():
                        if reply[0] == "ok" and isinstance(reply[1], list):
                            problems += reply[1]
                            del waiting[child]
                except (WorkerDied, KeyError):
                    waiting.pop(child, None)
        problems += [
            f"worker {child.pid} did not close in {_CLOSE_S:.0f} s and was killed" for child in waiting
        ]
        for child in self._children:
            child.end(grace_s=0.0 if child in waiting else 1.0)
        self._children = []
        return problems

    def _start(self, worker: int) -> Child:
        if self._spares and self._spares.children:
            child = self._spares.children.pop()
            child.begin(self._setups[worker])
            return child
        return Child(self._target, self._setups[worker], regions=[self._region], on_output=self._log)

    def _build(self, workers: Iterable[int]) -> None:
        """Wait until these workers have built their environments.

        One that is killed meanwhile, by whomever, costs a restart as at any other time. What its environments
        do themselves, raising or ending the process, they would do again.
        """
        end = time.monotonic() + restarts.FIRST_TIMEOUT_S
        for worker in workers:
            try:
                self._wait_built(worker, end)
            except WorkerDied as failure:
                child = self._children[worker]
                if not child.was_killed():
                    raise WorkerDied(f"{failure}; its last words:\n{child.tail()}") from failure
                self._restart(worker, failure)

    def _wait_built(self, worker: int, end: float) -> None:
        child = self._children[worker]
        try:
            replies = child.wait(end - time.monotonic())
        except WorkerDied as error:
            what = f"the worker process {child.describe_end()} while building its environments"
            raise WorkerDied(f"{self._name(worker)}: {what}") from error
        if not replies:
            took = f"building took over {restarts.FIRST_TIMEOUT_S:.0f} s"
            raise WorkerTimeout(f"{self._name(worker)}: {took}\n{child.read_stack()}")
        open_reply(replies[0])

    def _name(self, worker: int) -> str:
        ids = self.env_ids[worker]
        return f"environment {ids[0]}" if len(ids) == 1 else f"environments {ids[0]} to {ids[-1]}"

    def inspect(self, workers: Collection[int]) -> list[tuple[int, Any]]:
        """Find workers that are gone, silent or greedy, and replace them; a few times a second."""
        lost: list[tuple[int, Any]] = []
        if not workers or time.monotonic() - self._inspected < _INSPECT_S:
            return lost
        self._inspected = time.monotonic()
        for worker in workers:
            child, silence = self._children[worker], self._listener.listen(worker)
            at: Heartbeat | None = None  # where it is known better than by the newest beat
            memory = child.memory_bytes()
            if child.is_gone():
                cause: WorkerError = WorkerDied(f"the worker process {child.pid} {child.describe_end()}")
            elif memory > self._memory_limit:
                cause = WorkerDied(
                    f"the worker process {child.pid} holds {memory / 1e6:.0f} MB, over its limit of "
                    f"{self._memory_limit / 1e6:.0f} MB"
                )
            elif silence.silent_s > silence.limit_s:
                at = silence.beat
                cause = WorkerTimeout(f"{silence.describe()}; the worker's stack:\n{child.read_stack()}")
            else:
                continue
            lost.append((worker, self._replace(worker, cause, at)))
        return lost

    def _replace(self, worker: int, cause: WorkerError, at: Heartbeat | None = None) -> Lost:
        """End a worker and start another with new episodes; raises when its restarts are used up.

        at: what it was at, where that is known better than by the newest beat.
        """
        beat = at or self._listener.find_newest(worker)
        failure = self._listener.explain(cause, beat) or type(cause)(f"{self._name(worker)}: {cause}")
        self._restart(worker, failure, beat)
        return Lost(failure)

    def _restart(self, worker: int, failure: WorkerError, beat: Heartbeat | None = None) -> None:
        """Start workers instead of this one until one has built its environments and begun their episodes."""
        ids = self.env_ids[worker]
        while True:
            blamed = beat.env_id if beat is not None and beat.beats else ids[0]
            self._children[worker].end()
            tail = self._children[worker].tail()
            details = f"its last words:\n{tail}" if tail and isinstance(failure, WorkerDied) else ""
            self.budget.spend(blamed, failure, details)
            self.num_restarts += 1
            self._listener.forget(worker)
            self._children[worker] = self._start(worker)
            try:
                self._wait_built(worker, time.monotonic() + restarts.FIRST_TIMEOUT_S)
                if self.begin_message is not None:
                    self._begin(worker)
                return
            except WorkerError as again:
                failure = again
            except Exception as again:  # noqa: BLE001  border: it could not be built this time
                failure = WorkerDied(str(again) if isinstance(again, MissionGymError) else describe(again))
            beat = self._listener.find_newest(worker)

    def _begin(self, worker: int) -> None:
        """Begin new episodes in a new worker, with the same watch as over any command."""
        assert self.begin_message is not None
        child = self._children[worker]
        child.send(self.begin_message(worker))
        replies = child.wait(restarts.FIRST_TIMEOUT_S)
        if not replies:
            raise WorkerTimeout(f"reset() did not return within {restarts.FIRST_TIMEOUT_S:.0f} s")
        self.take_begun(worker, open_reply(replies[0]))
        self._listener.note_asked(worker)


def _open(reply: Any) -> Any:
    try:
        return open_reply(reply)
    except Exception as error:  # noqa: BLE001  border: whatever a worker replied with
        return Raised(error)


def open_reply(reply: Any) -> Any:
    """The content of a reply; an error is raised, with the worker's traceback."""
    kind, *content = reply
    if kind != "error":
        return Note(content[0]) if kind == "note" else content[0]
    error, trace = content
    if not isinstance(error, MissionGymError):
        error.add_note(f"in a worker:\n{trace}")
    raise error
