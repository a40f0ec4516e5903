"""Companions: processes that environments need beside them, such as a server for all of them.

An environment's class, or the callable that makes it, declares one: `companion_process(**kwargs)` gives a
Companion, or None. Whoever opens the environment starts it, once; what it tells becomes keyword arguments of
every environment. It ends with the last that holds it, with the process that started it, and begins again if
it dies.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from mission_gym.errors import MissionGymError, WorkerDied, WorkerTimeout
from mission_gym.names import make_importable

if TYPE_CHECKING:  # every worker imports this module, and starts nothing
    from mission_gym.procs.children import Child
    from mission_gym.procs.inside import Link

_START_S = 60.0
_LOOK_S = 0.5  # how soon its end shows
_MAX_BACK_OFF_S = 5.0
Built = TypeVar("Built")
Told = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Companion:
    """A process to be: it calls `target(tell, told, **arguments)`, a `module:callable` that serves for ever.

    tell: takes a dict of keyword arguments for the environments, once it can serve them. told: what it told
    before, if it is started again, and must now hold again; else None. arguments: plain values.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal companions of one process are the same one."""
        return json.dumps([self.target, self.arguments], sort_keys=True)


class CompanionNeeded(MissionGymError):
    """An environment can't be built without its companion, which was not started."""

    def __init__(self, companion: Companion) -> None:
        super().__init__(companion)
        self.companion = companion

    def __str__(self) -> str:
        return f"the environment needs its companion {self.companion.target}, and nobody has started it"


class Attendance:
    """A companion at work, until `close`, or until nobody holds this any more."""

    def __init__(self, companion: Companion) -> None:
        self._service = _Service(companion)
        self.told: Told = self._service.told
        self._end = weakref.finalize(self, self._service.end)  # at the end of the interpreter, too

    @property
    def pid(self) -> int:
        """Of the process that serves now."""
        return self._service.child.pid

    @property
    def is_closed(self) -> bool:
        return not self._end.alive

    def close(self) -> None:
        """End the companion, whoever holds it."""
        self._end()


class _Service:
    """The companion's process, and the thread that starts another when it has died."""

    def __init__(self, companion: Companion) -> None:
        self._companion, self._pid = companion, os.getpid()
        self._ended = threading.Event()
        self._lock = threading.Lock()  # around starting and ending
        self.child, self.told = _start(companion, None)
        thread = threading.Thread(target=self._keep, name=f"keeps {companion.target}", daemon=True)
        thread.start()

    def end(self) -> None:
        if os.getpid() != self._pid:  # a fork lets go of what is not its own
            return
        self._ended.set()
        with self._lock:
            self.child.end()

    def _keep(self) -> None:
        wait_s = _LOOK_S
        while not self._ended.wait(wait_s):
            with self._lock:
                if self._ended.is_set() or not self.child.is_gone():
                    wait_s = _LOOK_S
                    continue
                self.child.end()
                try:
                    self.child, _ = _start(self._companion, self.told)
                except MissionGymError:  # environments meet its absence, and count it
                    wait_s = min(2 * wait_s, _MAX_BACK_OFF_S)


_running: weakref.WeakValueDictionary[str, Attendance] = weakref.WeakValueDictionary()
_running_lock = threading.Lock()


def attend(companion: Companion) -> Attendance:
    """Start a companion, or share the equal one that this process has at work; WorkerError if it fails."""
    with _running_lock:
        running = _running.get(companion.key)
        if running is None or running.is_closed:
            running = _running[companion.key] = Attendance(companion)
        return running


def with_companion(build: Callable[[Told], Built]) -> tuple[Built, Attendance | None]:
    """What `build` makes of what a companion told. It is called with nothing first: an environment that needs
    one says so with CompanionNeeded, wherever it was built. Hold the second value as long as the first."""
    try:
        return build({}), None
    except CompanionNeeded as needed:
        companion = needed.companion
        needed.__traceback__ = None  # frames in a circle of references would hold the companion
    attendance = attend(companion)
    return build(attendance.told), attendance


def _start(companion: Companion, told: Told | None) -> tuple[Child, Told]:
    from mission_gym.procs.children import BoundedLog, Child

    setup = (companion.target, dict(companion.arguments), told)
    child = Child("mission_gym.procs.companions:serve_companion", setup, on_output=BoundedLog(None))
    try:
        replies = child.wait(_START_S)
        if not replies:
            raise WorkerTimeout(
                f"the companion {companion.target} told nothing for {_START_S:.0f} s; the stack:\n"
                f"{child.read_stack()}"
            )
        return child, replies[0]
    except WorkerDied as error:
        last_words = child.tail()
        child.end()
        raise WorkerDied(
            f"the companion {companion.target} {child.describe_end()}; its last words:\n{last_words}"
        ) from error
    except BaseException:
        child.end()
        raise


def serve_companion(link: Link, setup: tuple[str, dict[str, Any], Told | None]) -> None:
    """The companion from the inside. Its output is dropped, but for its last words."""
    target, arguments, told = setup
    module, _, name = target.partition(":")
    make_importable()
    serve = getattr(importlib.import_module(module), name)
    with contextlib.suppress(KeyboardInterrupt):
        serve(link.send, told, **arguments)
