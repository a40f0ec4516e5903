"""The actors of a vector on a cluster, seen from this process: placed, called, watched and replaced.

An actor holds a shard of the environments on some node. Each requests CPUs, and Ray finds a node or waits for
one to join; an autoscaler sees the pending requests. If every shard is needed and one finds no room within
PLACE_S, an actor without CPUs runs it next to others until there is room. The death of a process or node
costs the segments under way. A lost shard gets a new actor at once; calls wait for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mission_gym.errors import MissionGymError, UsageError, WorkerDied, WorkerError, describe
from mission_gym.ray.cluster import Cluster, check_versions
from mission_gym.vector.failures import RestartBudget
from mission_gym.vector.pool import LostReply
from mission_gym.vector.record import Limits

PLACE_S = 10.0  # for a shard to find room, before it shares the CPUs of others
_FIRST_S = 300.0  # for the first shard; a cloud may have to start a machine
_CHECK_S = 0.5
_CLOSE_S = 5.0
_MESSAGE_CHARS = 400  # of Ray's explanation of a death
_CONTROL = "control"  # the concurrency group of calls that run while an actor is collecting


class Call(NamedTuple):
    """A pending call of an actor."""

    shard: int
    name: str
    handle: Any  # of the actor


@dataclass(slots=True, eq=False)
class _Actors:
    """The actors of a shard."""

    handle: Any = None  # the one that has the shard; None if none has a process yet
    better: Any = None  # one with its own CPUs, if `handle` has none
    squeezed: bool = False  # `handle` has no CPUs
    candidates: dict[Any, bool] = field(default_factory=dict)  # requested actors: whether without CPUs
    since: float = 0.0  # when the oldest of them was requested
    queue: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)  # calls until there is one


class ActorPool:
    """One actor for each shard.

    kind: the actor's class, with `greet() -> versions` and `pause`. setups: its arguments, by shard.
    num_cpus: of an actor. needs_all: collecting needs every shard. `begin` returns the arguments of the first
    call of an actor that replaces another.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: type,
        setups: list[tuple[Any, ...]],
        num_cpus: int,
        limits: Limits,
        *,
        needs_all: bool,
    ) -> None:
        self.begin: Callable[[int], tuple[Any, ...]] = lambda shard: ()
        self.num_restarts = 0
        self.notes: list[str] = []
        self.ray = cluster.ray
        self._cluster = cluster
        self._kind = self.ray.remote(concurrency_groups={_CONTROL: 1})(kind)
        self.needs_all = needs_all
        self._setups, self._num_cpus = setups, num_cpus
        self._budget = RestartBudget(limits.max_restarts)
        self._shards = [_Actors() for _ in setups]
        self._calls: dict[Any, Call] = {}  # by Ray's reference to the reply
        self._checked = self._started = time.monotonic()
        self._was_running = False
        for shard in range(len(setups)):
            self._request(shard, num_cpus)

    @property
    def size(self) -> int:
        return len(self._shards)

    def count_running(self) -> tuple[int, int]:
        """The number of shards that have an actor, and of those whose actor has no CPUs."""
        running = [actors for actors in self._shards if actors.handle is not None]
        return len(running), sum(actors.squeezed for actors in running)

    def is_running(self, shard: int) -> bool:
        return self._shards[shard].handle is not None

    def call(self, shard: int, name: str, *args: Any) -> None:
        """Call the actor of a shard; `wait` returns the reply."""
        actors = self._shards[shard]
        if actors.handle is None:
            actors.queue.append((name, args))
        else:
            self._submit(shard, actors.handle, name, args)

    def pause(self, shard: int, serial: int) -> None:
        """End the orders of a shard up to this serial number, while it is collecting."""
        handle = self._shards[shard].handle
        if handle is not None:
            handle.pause.options(concurrency_group=_CONTROL).remote(serial)

    def check(self, since_s: float = 0.0) -> None:
        """WorkerDied if the head of the cluster is gone: using Ray would end this process. since_s: how old
        the last check may be."""
        if self._cluster.is_lost(since_s):
            raise WorkerDied(
                f"the head of the Ray cluster at {self._cluster.address} is gone; resume the run on another"
                " cluster, or when it is back [--ray-address]"
            )

    def wait(self, timeout_s: float) -> list[tuple[Call, Any]]:
        """Wait for replies, or LostReply for a shard whose actor was replaced; empty after `timeout_s`. An
        error that an actor raised is raised here."""
        self._check_places()
        ray, found = self.ray, list[tuple[Call, Any]]()
        if not self._calls:
            time.sleep(timeout_s)
            return found
        ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        for ref in ready:
            call = self._calls.pop(ref, None)
            if call is None:  # of an actor that was lost meanwhile
                continue
            try:
                reply = ray.get(ref)
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
                if self._lose(call, error):
                    found.append((call, LostReply(_as_failure(error))))
                continue
            except ray.exceptions.RayTaskError as error:
                raise _find_cause(error) from error
            if call.name == "greet":
                self._admit(call, reply)
            else:
                found.append((call, reply))
        return found

    def ask(self, shards: Iterable[int], name: str, *args: Any) -> dict[int, Any]:
        """The replies of shards by number; LostReply for a shard that was lost meanwhile."""
        replies: dict[int, Any] = {}
        wanted = set(shards)
        if wanted:
            self.check()
        for shard in wanted:
            self.call(shard, name, *args)
        while wanted - replies.keys():
            for call, reply in self.wait(_CHECK_S):
                if call.shard in wanted and (call.name == name or isinstance(reply, LostReply)):
                    replies[call.shard] = reply
        return replies

    def find_room(self) -> list[int]:
        """The shards that can move to an actor with its own CPUs."""
        return [shard for shard, actors in enumerate(self._shards) if actors.better is not None]

    def move(self, shard: int) -> None:
        """Replace a shard's actor by the better one; the caller calls `begin` next."""
        actors = self._shards[shard]
        self._drop(actors.handle)
        actors.handle, actors.better, actors.squeezed = actors.better, None, False
        self.notes.append(f"shard {shard} of the environments has its own CPUs again")

    def reset_failures(self, shard: int) -> None:
        """Reset the failure count of a shard that delivered a segment."""
        self._budget.forget(shard)

    def close(self) -> list[str]:
        """End every actor with all processes it started; returns what went wrong."""
        problems: list[str] = []
        if self._cluster.is_closed or self._cluster.is_lost():
            return problems
        ray = self.ray
        with contextlib.suppress(ray.exceptions.RayError):
            running = [actors.handle for actors in self._shards if actors.handle is not None]
            for handle in running:
                handle.pause.options(concurrency_group=_CONTROL).remote(1 << 62)
            ends = [handle.close.remote() for handle in running]
            done, late = ray.wait(ends, num_returns=len(ends), timeout=_CLOSE_S) if ends else ([], [])
            problems += [f"an actor did not close in {_CLOSE_S:.0f} s and was killed" for _ in late]
            for ref in done:
                with contextlib.suppress(ray.exceptions.RayError):
                    problems += ray.get(ref)
        for actors in self._shards:
            for handle in (actors.handle, actors.better, *actors.candidates):
                if handle is not None:
                    self._drop(handle)
        return problems

    def _request(self, shard: int, num_cpus: int) -> None:
        """Request an actor from Ray."""
        actors = self._shards[shard]
        handle = self._kind.options(
            num_cpus=num_cpus, scheduling_strategy="SPREAD", max_restarts=0, max_task_retries=0
        ).remote(*self._setups[shard])
        if not actors.candidates:
            actors.since = time.monotonic()
        actors.candidates[handle] = not num_cpus
        self._submit(shard, handle, "greet", ())

    def _submit(self, shard: int, handle: Any, name: str, args: tuple[Any, ...]) -> None:
        self._calls[getattr(handle, name).remote(*args)] = Call(shard, name, handle)

    def _admit(self, call: Call, versions: dict[str, str]) -> None:
        """Use an actor that has a process now: for its shard, or as the better one."""
        check_versions(versions, f"of shard {call.shard}")
        actors = self._shards[call.shard]
        without_cpus = actors.candidates.pop(call.handle)
        self._was_running = True
        if actors.handle is not None:
            actors.better = call.handle
            return
        actors.handle, actors.squeezed = call.handle, without_cpus
        if without_cpus:
            self.notes.append(
                f"no node has room for shard {call.shard} of the environments ({self._num_cpus} CPUs);"
                " it shares the CPUs of others, slower, until a node joins"
            )
        queue, actors.queue = actors.queue, []
        for name, args in queue:
            self._submit(call.shard, actors.handle, name, args)

    def _lose(self, call: Call, error: Exception) -> bool:
        """Replace an actor that died; returns whether it had the shard."""
        shard, handle, failure = call.shard, call.handle, _as_failure(error)
        actors = self._shards[shard]
        self._drop(handle)
        was_better, had_shard = actors.better is handle, actors.handle is handle
        actors.candidates.pop(handle, None)
        if was_better:
            actors.better = None
        if had_shard:
            actors.handle, actors.queue = actors.better, []
            actors.better, actors.squeezed = None, False
            self.num_restarts += 1
            self.notes.append(f"shard {shard} of the environments begins again: {failure}")
        if not was_better:  # one that never had the shard, and went with its node, has not failed
            self._budget.spend(shard, failure)
        if actors.handle is None or was_better:
            self._request(shard, self._num_cpus)
        if had_shard:
            self.call(shard, "begin", *self.begin(shard))
        return had_shard

    def _drop(self, handle: Any) -> None:
        """End an actor and forget its calls."""
        self._calls = {ref: call for ref, call in self._calls.items() if call.handle is not handle}
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.kill(handle, no_restart=True)

    def _check_places(self) -> None:
        """Request actors without CPUs for shards that find no room, a few times per second; UsageError if no
        shard ever does."""
        now = time.monotonic()
        if now - self._checked < _CHECK_S:
            return
        self._checked = now
        self.check(_CHECK_S)
        if not self._was_running and now - self._started > _FIRST_S:
            nodes = ", ".join(f"{node.host}: {node.num_cpus}" for node in self._cluster.nodes())
            raise UsageError(
                f"no node of the cluster had {self._num_cpus} free CPUs for {_FIRST_S:.0f} s (CPUs: {nodes});"
                " add nodes, or request fewer CPUs per actor [--actor-workers]"
            )
        for shard, actors in enumerate(self._shards):
            waits = actors.handle is None and now - actors.since > PLACE_S
            if self.needs_all and self._was_running and waits and not any(actors.candidates.values()):
                self._request(shard, 0)


def _as_failure(error: Exception) -> WorkerError:
    message = " ".join(line.strip() for line in str(error).strip().splitlines())
    return WorkerDied(f"an actor of the cluster was lost: {message[:_MESSAGE_CHARS]}")


def _find_cause(error: Any) -> BaseException:
    """The error that an actor raised."""
    cause: BaseException = error.cause if isinstance(error.cause, BaseException) else error
    if not isinstance(cause, MissionGymError):
        cause = WorkerError(f"an actor of the cluster raised {describe(cause)}\n{error}")
    return cause
