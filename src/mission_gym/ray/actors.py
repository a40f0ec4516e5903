"""The actors of a vector on a cluster, seen from this process: placed, called, watched, replaced.

An actor holds a share of the environments on some node. Each asks for CPUs, and Ray finds the node, or waits
for one to join: what waits is what an autoscaler sees. Where every share is needed and one finds no room in
PLACE_S, an actor without CPUs makes it meanwhile, beside others, and hands over when there is room. The death
of a process or node costs what it had under way. A lost share has a new actor at once; calls wait for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mission_gym.errors import MissionGymError, UsageError, WorkerDied, WorkerError, describe
from mission_gym.ray.cluster import Cluster, check_versions
from mission_gym.vector.crew import Lost
from mission_gym.vector.restarts import Limits, RestartBudget

PLACE_S = 10.0  # for a share to find room, before it is squeezed in beside others
_FIRST_S = 300.0  # for the first of all; a cloud may have to start a machine
_LOOK_S = 0.5
_CLOSE_S = 5.0
_WORDS = 400  # characters of what Ray tells of a death
_CONTROL = "control"  # the group of calls that are heard while an actor is at work


class Call(NamedTuple):
    """What an actor was asked for."""

    share: int
    name: str
    handle: Any  # of the actor


@dataclass(slots=True, eq=False)
class _Post:
    """The place of a share: who makes it, and who may."""

    handle: Any = None  # None: nobody has a process yet
    better: Any = None  # one with CPUs of its own, where `handle` has none
    squeezed: bool = False  # `handle` has no CPUs of its own
    candidates: dict[Any, bool] = field(default_factory=dict)  # asked for: whether without CPUs
    since: float = 0.0  # when the oldest of them was asked for
    queue: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)  # calls until there is one


class ActorPool:
    """One actor for each share. begin: the arguments of the first call of an actor that replaces another.

    kind: the actor's class, with `greet() -> versions` and `pause`; setups: its arguments, by share.
    num_cpus: of an actor. needs_all: nothing goes on without one of them.
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
        self.begin: Callable[[int], tuple[Any, ...]] = lambda share: ()
        self.num_restarts = 0
        self.notes: list[str] = []
        self.ray = cluster.ray
        self._cluster = cluster
        self._kind = self.ray.remote(concurrency_groups={_CONTROL: 1})(kind)
        self.needs_all = needs_all
        self._setups, self._num_cpus = setups, num_cpus
        self._budget = RestartBudget(limits.max_restarts)
        self._posts = [_Post() for _ in setups]
        self._calls: dict[Any, Call] = {}  # by Ray's reference to the reply
        self._looked = self._begun = time.monotonic()
        self._was_up = False
        for share in range(len(setups)):
            self._ask_for(share, num_cpus)

    @property
    def size(self) -> int:
        return len(self._posts)

    def count_up(self) -> tuple[int, int]:
        """Shares that have an actor, and those of them that have no CPUs of their own."""
        up = [post for post in self._posts if post.handle is not None]
        return len(up), sum(post.squeezed for post in up)

    def is_up(self, share: int) -> bool:
        return self._posts[share].handle is not None

    def call(self, share: int, name: str, *args: Any) -> None:
        """Ask the actor of a share; the reply comes from `wait`."""
        post = self._posts[share]
        if post.handle is None:
            post.queue.append((name, args))
        else:
            self._submit(share, post.handle, name, args)

    def pause(self, share: int, serial: int) -> None:
        """Let a share end its orders up to this one, while it is at work."""
        handle = self._posts[share].handle
        if handle is not None:
            handle.pause.options(concurrency_group=_CONTROL).remote(serial)

    def check(self, since_s: float = 0.0) -> None:
        """WorkerDied if the head of the cluster is gone: using Ray would end this process. since_s: how long
        ago that may have been looked at."""
        if self._cluster.is_lost(since_s):
            raise WorkerDied(
                f"the head of the Ray cluster at {self._cluster.address} is gone; resume the run on another"
                " cluster, or when it is back [--ray-address]"
            )

    def wait(self, timeout_s: float) -> list[tuple[Call, Any]]:
        """What was replied, or Lost for the share of an actor that was replaced; empty if the time has
        passed. An error that an actor raised is raised here."""
        self._look()
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
                    found.append((call, Lost(_as_failure(error))))
                continue
            except ray.exceptions.RayTaskError as error:
                raise _find_cause(error) from error
            if call.name == "greet":
                self._welcome(call, reply)
            else:
                found.append((call, reply))
        return found

    def ask(self, shares: Iterable[int], name: str, *args: Any) -> dict[int, Any]:
        """The replies of shares by number; that of one that was lost meanwhile is Lost."""
        replies: dict[int, Any] = {}
        wanted = set(shares)
        if wanted:
            self.check()
        for share in wanted:
            self.call(share, name, *args)
        while wanted - replies.keys():
            for call, reply in self.wait(_LOOK_S):
                if call.share in wanted and (call.name == name or isinstance(reply, Lost)):
                    replies[call.share] = reply
        return replies

    def find_room(self) -> list[int]:
        """Squeezed shares that may move to an actor with CPUs of its own."""
        return [share for share, post in enumerate(self._posts) if post.better is not None]

    def move(self, share: int) -> None:
        """Let the better actor take over; what it begins with is called next."""
        post = self._posts[share]
        self._drop(post.handle)
        post.handle, post.better, post.squeezed = post.better, None, False
        self.notes.append(f"share {share} of the environments has CPUs of its own again")

    def forgive(self, share: int) -> None:
        """A share has delivered: what failed before no longer counts."""
        self._budget.forget(share)

    def close(self) -> list[str]:
        """End every actor with all it started; returns what went wrong."""
        problems: list[str] = []
        if self._cluster.is_closed or self._cluster.is_lost():
            return problems
        ray = self.ray
        with contextlib.suppress(ray.exceptions.RayError):
            up = [post.handle for post in self._posts if post.handle is not None]
            for handle in up:
                handle.pause.options(concurrency_group=_CONTROL).remote(1 << 62)
            ends = [handle.close.remote() for handle in up]
            done, late = ray.wait(ends, num_returns=len(ends), timeout=_CLOSE_S) if ends else ([], [])
            problems += [f"an actor did not close in {_CLOSE_S:.0f} s and was killed" for _ in late]
            for ref in done:
                with contextlib.suppress(ray.exceptions.RayError):
                    problems += ray.get(ref)
        for post in self._posts:
            for handle in (post.handle, post.better, *post.candidates):
                if handle is not None:
                    self._drop(handle)
        return problems

    def _ask_for(self, share: int, num_cpus: int) -> None:
        """Ask Ray for an actor."""
        post = self._posts[share]
        handle = self._kind.options(
            num_cpus=num_cpus, scheduling_strategy="SPREAD", max_restarts=0, max_task_retries=0
        ).remote(*self._setups[share])
        if not post.candidates:
            post.since = time.monotonic()
        post.candidates[handle] = not num_cpus
        self._submit(share, handle, "greet", ())

    def _submit(self, share: int, handle: Any, name: str, args: tuple[Any, ...]) -> None:
        self._calls[getattr(handle, name).remote(*args)] = Call(share, name, handle)

    def _welcome(self, call: Call, versions: dict[str, str]) -> None:
        """An actor has a process: it makes its share, or may take over."""
        check_versions(versions, f"of share {call.share}")
        post = self._posts[call.share]
        without_cpus = post.candidates.pop(call.handle)
        self._was_up = True
        if post.handle is not None:
            post.better = call.handle
            return
        post.handle, post.squeezed = call.handle, without_cpus
        if without_cpus:
            self.notes.append(
                f"no node has room for share {call.share} of the environments ({self._num_cpus} CPUs);"
                " it runs beside others, slower, until one joins"
            )
        queue, post.queue = post.queue, []
        for name, args in queue:
            self._submit(call.share, post.handle, name, args)

    def _lose(self, call: Call, error: Exception) -> bool:
        """Replace an actor; whether it was the one at work."""
        share, handle = call.share, call.handle
        post = self._posts[share]
        self._drop(handle)
        was_better, was_at_work = post.better is handle, post.handle is handle
        post.candidates.pop(handle, None)
        if was_better:
            post.better = None
        if was_at_work:
            post.handle, post.queue = post.better, []
            post.better, post.squeezed = None, False
            self.num_restarts += 1
            self.notes.append(f"share {share} of the environments begins anew: {_as_failure(error)}")
        if not was_better:  # one that was never at work, and went with its node, has failed at nothing
            self._budget.spend(share, _as_failure(error))
        if post.handle is None or was_better:
            self._ask_for(share, self._num_cpus)
        if was_at_work:
            self.call(share, "begin", *self.begin(share))
        return was_at_work

    def _drop(self, handle: Any) -> None:
        """End an actor, and forget what it was asked for."""
        self._calls = {ref: call for ref, call in self._calls.items() if call.handle is not handle}
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.kill(handle, no_restart=True)

    def _look(self) -> None:
        """Squeeze in what finds no room, a few times a second; UsageError if nothing ever does."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        self.check(_LOOK_S)
        if not self._was_up and now - self._begun > _FIRST_S:
            nodes = ", ".join(f"{node.host}: {node.num_cpus}" for node in self._cluster.nodes())
            raise UsageError(
                f"no node of the cluster had {self._num_cpus} free CPUs for {_FIRST_S:.0f} s (CPUs: {nodes});"
                " add nodes, or let actors ask for fewer [--actor-workers]"
            )
        for share, post in enumerate(self._posts):
            waits = post.handle is None and now - post.since > PLACE_S
            if self.needs_all and self._was_up and waits and not any(post.candidates.values()):
                self._ask_for(share, 0)


def _as_failure(error: Exception) -> WorkerError:
    words = " ".join(line.strip() for line in str(error).strip().splitlines())
    return WorkerDied(f"an actor of the cluster was lost: {words[:_WORDS]}")


def _find_cause(error: Any) -> BaseException:
    """What an actor raised, with its traceback as a note."""
    cause: BaseException = error.cause if isinstance(error.cause, BaseException) else error
    if not isinstance(cause, MissionGymError):
        cause = WorkerError(f"an actor of the cluster raised {describe(cause)}\n{error}")
    return cause
