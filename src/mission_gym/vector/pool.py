"""Worker processes seen from the parent: started, called, watched and replaced; and a throw-away one that
probes an environment.

Every wait notices a worker that ended, that sent no heartbeat for `timeout_s`, or whose memory passed its
limit. Such a worker is ended with every process it started, and a new one begins new episodes in its rows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from mission_gym.data import EnvSpec
from mission_gym.env.pace import Pace, read_queued_s
from mission_gym.env.user_code import find_line_in_stack
from mission_gym.errors import MissionGymError, WorkerDied, WorkerError, WorkerTimeout, describe
from mission_gym.procs import (
    BoundedLog,
    Child,
    Region,
    dump_object,
    free_memory_bytes,
    usable_cores,
    wait_for_replies,
)
from mission_gym.vector import SERVICE, record
from mission_gym.vector.arrays import Heartbeat, SharedArrays
from mission_gym.vector.failures import HeartbeatMonitor, RestartBudget
from mission_gym.vector.record import Source, VectorOptions
from mission_gym.vector.serial import SerialVec

_INSPECT_S = 0.25
_CLOSE_S = 5.0
_MEMORY_SHARE = 0.8  # of the memory free at the start, for all workers together
_LAST_STEP_S = 0.8  # for the last step of a measurement to end


@dataclass(frozen=True, slots=True)
class LostReply:
    """Takes the place of a reply: the worker or actor died during the command and was replaced."""

    failure: WorkerError


@dataclass(frozen=True, slots=True)
class Notice:
    """Content that a worker sent without being asked."""

    content: Any


class WorkerPool:
    """One child process for each part of the environments.

    setups: the packed WorkerSetup of each worker. env_ids: its environments. kind: how workers step them.
    """

    def __init__(
        self,
        setups: list[bytes],
        env_ids: list[range],
        region: Region,
        shared: SharedArrays,
        options: VectorOptions,
        kind: type[SerialVec],
    ) -> None:
        limits = options.limits
        self.env_ids = env_ids
        self.size = len(setups)
        self._on_failure = options.on_failure or (lambda failure: None)
        self.budget = RestartBudget(limits.max_restarts, report=self._on_failure)
        self.num_restarts = 0
        self.lost_s = 0.0  # waited for workers that hung, and for those that replaced them
        # The command with which a new worker begins episodes; set once episodes have begun.
        self.begin_message: Callable[[int], Any] | None = None
        self._service = SERVICE if options.extension is None else options.extension.service
        self._setups, self._spares = setups, options.spares
        self._region, self._log = region, options.log or BoundedLog(None)
        self._memory_limit = limits.memory_bytes or int(free_memory_bytes() * _MEMORY_SHARE / self.size)
        self._spin = usable_cores() > self.size
        self._inspected = time.monotonic()
        self._monitor = HeartbeatMonitor(
            shared, env_ids, limits, is_concurrent=kind.is_concurrent, grace_s=kind.grace_s
        )
        self._children: list[Child] = []
        try:
            self._children = [self._start(worker) for worker in range(self.size)]
            self._build()
        except BaseException:
            self.close()
            raise

    def send(self, worker: int, *message: Any) -> None:
        """Send a command; if the worker is dead, the next wait finds out."""
        self._monitor.note_command(worker)
        with contextlib.suppress(WorkerError):
            self._children[worker].send(message)

    def wait(self, workers: Iterable[int], timeout_s: float) -> list[tuple[int, Any]]:
        """Wait for replies or losses of these workers; empty after `timeout_s`.

        An error that a worker replied with is raised here.
        """
        found = self._receive(workers, timeout_s)
        _raise_first(reply for _, reply in found)
        return found

    def _receive(self, workers: Iterable[int], timeout_s: float) -> list[tuple[int, Any]]:
        """As `wait`, with errors as values."""
        by_child = {self._children[worker]: worker for worker in workers}
        end = time.monotonic() + timeout_s
        while True:
            left = max(0.0, min(end - time.monotonic(), _INSPECT_S))
            found: list[tuple[int, Any]] = []
            for child in wait_for_replies(by_child, left, spin=self._spin):
                worker = by_child[child]
                try:
                    found += [(worker, _unpack(reply)) for reply in self._listen(child.take())]
                except WorkerDied as failure:
                    failure.facts = {"kind": "died", "what": f"the worker process {child.describe_end()}"}
                    found.append((worker, self._replace(worker, failure)))
            replied = {worker for worker, _ in found}
            found += self.inspect([worker for worker in by_child.values() if worker not in replied])
            if found or time.monotonic() >= end:
                return found

    def _listen(self, replies: Iterable[Any]) -> list[Any]:
        """Report the failures among the messages of a worker, and return the others."""
        others = []
        for reply in replies:
            if reply[0] == "failure":
                self._on_failure(reply[1])
            else:
                others.append(reply)
        return others

    def _wait(self, child: Child, timeout_s: float) -> list[Any]:
        """Wait for replies of one worker; empty after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while replies := child.wait(max(0.0, end - time.monotonic())):
            if others := self._listen(replies):
                return others
        return []

    def ask(self, workers: Iterable[int], *message: Any, each: list[Any] | None = None) -> list[Any]:
        """Send a command to workers and wait for all replies, in order; a lost worker is asked again.

        each: further arguments of each worker. The first error is raised after all have replied: otherwise
        the other replies would be taken for those of the next command.
        """
        ids = list(workers)
        messages = {worker: (*message, *(() if each is None else each[i])) for i, worker in enumerate(ids)}
        for worker in ids:
            self.send(worker, *messages[worker])
        replies: dict[int, Any] = {}
        while len(replies) < len(ids):
            waiting = [worker for worker in ids if worker not in replies]
            for worker, reply in self._receive(waiting, _INSPECT_S):
                if isinstance(reply, LostReply):
                    self.send(worker, *messages[worker])
                elif not isinstance(reply, Notice):  # of an earlier command
                    replies[worker] = reply
        _raise_first(replies.values())
        return [replies[worker] for worker in ids]

    def pids(self) -> list[int]:
        """The worker processes, for diagnostics."""
        return [child.pid for child in self._children]

    def close(self) -> list[str]:
        """End every worker with all processes it started; returns what went wrong in `close`."""
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
        return Child(self._service, self._setups[worker], regions=[self._region], on_output=self._log)

    def _build(self) -> None:
        """Wait until all workers have built their environments.

        A worker that is killed meanwhile costs a restart, as at any other time. An environment that raises or
        ends its process would do so again, so that is an error.
        """
        end = time.monotonic() + record.FIRST_TIMEOUT_S
        for worker in range(self.size):
            try:
                self._wait_built(worker, end)
            except WorkerDied as failure:
                child = self._children[worker]
                if not child.was_killed():
                    raise WorkerDied(f"{failure}; its last output:\n{child.tail()}") from failure
                self._restart(worker, failure)

    def _wait_built(self, worker: int, end: float) -> None:
        child = self._children[worker]
        try:
            replies = self._wait(child, end - time.monotonic())
        except WorkerDied as error:
            what = f"the worker process {child.describe_end()} while building its environments"
            raise WorkerDied(f"{self._name(worker)}: {what}") from error
        if not replies:
            took = f"building took over {record.FIRST_TIMEOUT_S:.0f} s"
            raise WorkerTimeout(f"{self._name(worker)}: {took}\n{child.read_stack()}")
        open_reply(replies[0])

    def _name(self, worker: int) -> str:
        ids = self.env_ids[worker]
        return f"environment {ids[0]}" if len(ids) == 1 else f"environments {ids[0]} to {ids[-1]}"

    def inspect(self, workers: Collection[int]) -> list[tuple[int, Any]]:
        """Replace workers that died, hang or use too much memory; a few times per second."""
        if not workers or time.monotonic() - self._inspected < _INSPECT_S:
            return []
        self._inspected = time.monotonic()
        lost: list[tuple[int, Any]] = []
        for worker in workers:
            child, hung = self._children[worker], self._monitor.find_hung(worker)
            memory = child.memory_bytes()
            if child.is_gone():
                cause: WorkerError = WorkerDied(f"the worker process {child.pid} {child.describe_end()}")
                cause.facts = {"kind": "died", "what": f"the worker process {child.describe_end()}"}
                lost.append((worker, self._replace(worker, cause)))
            elif memory > self._memory_limit:
                cause = WorkerDied(
                    f"the worker process {child.pid} uses {memory / 1e6:.0f} MB, over its limit of "
                    f"{self._memory_limit / 1e6:.0f} MB"
                )
                cause.facts = {"kind": "memory", "what": f"its worker uses {memory / 1e6:.0f} MB"}
                lost.append((worker, self._replace(worker, cause)))
            elif hung is not None:
                last, what, since = hung
                stack = child.read_stack()
                cause = WorkerTimeout(f"{what}; the worker's stack:\n{stack}")
                line = find_line_in_stack(stack)
                what = what.partition(" [")[0].replace("within", "for")
                cause.facts = {"kind": "hung", "what": what, "line": line, "trace": stack}
                lost.append((worker, self._replace(worker, cause, last)))
                self.lost_s += time.monotonic() - since
        return lost

    def _replace(self, worker: int, cause: WorkerError, last: Heartbeat | None = None) -> LostReply:
        """End a worker and start another with new episodes; raises if its restarts are used up.

        last: the heartbeat of the failure, if it is not the newest one.
        """
        last = last or self._monitor.find_newest(worker)
        failure = self._monitor.explain(cause, last) or type(cause)(f"{self._name(worker)}: {cause}")
        self._restart(worker, failure, last)
        return LostReply(failure)

    def _restart(self, worker: int, failure: WorkerError, last: Heartbeat | None = None) -> None:
        """Start workers until one has built its environments and begun their episodes."""
        ids = self.env_ids[worker]
        while True:
            blamed = last.env_id if last is not None and last.number else ids[0]
            self._children[worker].end()
            tail = self._children[worker].tail()
            details = f"its last output:\n{tail}" if tail and isinstance(failure, WorkerDied) else ""
            self.budget.spend(blamed, failure, details)
            self.num_restarts += 1
            self._monitor.forget(worker)
            self._children[worker] = self._start(worker)
            try:
                self._wait_built(worker, time.monotonic() + record.FIRST_TIMEOUT_S)
                if self.begin_message is not None:
                    self._begin(worker, self.begin_message(worker))
                return
            except WorkerError as again:
                failure = again
            except Exception as again:  # noqa: BLE001  border: it could not be built this time
                failure = WorkerDied(str(again) if isinstance(again, MissionGymError) else describe(again))
            last = self._monitor.find_newest(worker)

    def _begin(self, worker: int, message: Any) -> None:
        """Begin new episodes in a new worker, watched like any other command."""
        child = self._children[worker]
        child.send(message)
        replies = self._wait(child, record.FIRST_TIMEOUT_S)
        if not replies:
            raise WorkerTimeout(f"reset() did not return within {record.FIRST_TIMEOUT_S:.0f} s")
        open_reply(replies[0])
        self._monitor.note_command(worker)


def _unpack(reply: Any) -> Any:
    try:
        return open_reply(reply)
    except Exception as error:  # noqa: BLE001  border: whatever a worker replied with
        return error


def _raise_first(replies: Iterable[Any]) -> None:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply


def open_reply(reply: Any) -> Any:
    """The content of a child's reply. If it is an error, raise it with the child's traceback."""
    kind, *content = reply
    if kind != "error":
        return Notice(content[0]) if kind == "note" else content[0]
    error, trace = content
    if not isinstance(error, MissionGymError):
        error.add_note(f"in a worker:\n{trace}")
    raise error


def probe_in_worker(
    source: Source, measure_s: float = 0.0, bare: bool = False
) -> tuple[EnvSpec, Pace | None]:
    """Build, reset and close a throw-away environment in a child process.

    Returns its EnvSpec, and the pace of its steps, measured for about `measure_s`; None if a step fails or
    ends the child. If a step takes longer, its pace is the time waited so far, and the CPU time in it. A
    child that is killed before it replies is replaced, as often as the limits allow.
    """
    env_id, timeout_s = source.env_id, record.FIRST_TIMEOUT_S
    setup = dump_object((source.first, env_id, measure_s, bare, source.max_sequence))
    budget = RestartBudget(source.options.limits.max_restarts)
    while True:
        child = Child("mission_gym.vector.worker:serve_probe", setup, on_output=BoundedLog(None))
        try:
            replies = child.wait(timeout_s)
            if not replies:
                raise WorkerTimeout(
                    f"{env_id}: building and resetting took over {timeout_s:.0f} s; the stack:\n"
                    f"{child.read_stack()}"
                )
            spec = open_reply(replies[0])
            return spec, _receive_pace(child, replies, measure_s) if measure_s else None
        except WorkerDied as error:
            failure = WorkerDied(
                f"{env_id}: the process that probed the environment {child.describe_end()}; its last "
                f"output:\n{child.tail()}"
            )
            if not child.was_killed():
                raise failure from error
        finally:
            child.end(_CLOSE_S)
        budget.spend(0, failure)


def _receive_pace(child: Child, replies: list[bytes], measure_s: float) -> Pace | None:
    """The pace that the child sends after its spec, or an estimate from outside if it sends none in time."""
    begun, queued_s, (cpu_s, _) = time.monotonic(), read_queued_s(child.pid), _read_use(child.pid)
    if len(replies) == 1:
        try:
            replies = [*replies, *child.wait(measure_s + _LAST_STEP_S)]
        except WorkerDied:
            return None
    if len(replies) > 1:
        pace: Pace | None = open_reply(replies[1])
        return pace
    (end_s, is_runnable), queued_s = _read_use(child.pid), read_queued_s(child.pid) - queued_s
    own_s = max(time.monotonic() - begun - queued_s, end_s - cpu_s)
    # On a busy machine, a wait for a core that has not ended is not counted yet.
    return Pace(0, own_s, 0.0, 1.0 if is_runnable else (end_s - cpu_s) / own_s)


def _read_use(pid: int) -> tuple[float, bool]:
    """The CPU seconds of a process, and whether it computes or waits for a core only."""
    import psutil  # takes 20 ms to import, and most vectors time nothing

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return sum(process.cpu_times()[:2]), process.status() == psutil.STATUS_RUNNING
    return 0.0, False
