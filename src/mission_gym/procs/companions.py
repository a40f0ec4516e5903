"""Companions: processes that environments need next to them, such as a server for all of them.

An environment's class, or the callable that makes it, declares one: `companion_process(**kwargs)` returns a
Companion or None. The process that opens the environment starts it once. The companion reports keyword
arguments for every environment. It is restarted if it dies, and it ends with its last user or with the
process that started it.
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
from mission_gym.procs.start import explain_refusal

if TYPE_CHECKING:  # every worker imports this module, and starts nothing
    from mission_gym.procs.children import Child
    from mission_gym.procs.link import Link

_START_S = 60.0
_POLL_S = 0.5  # until its end is noticed
_MAX_BACK_OFF_S = 5.0
Built = TypeVar("Built")
Kwargs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Companion:
    """A process that calls `target(report, previous, **arguments)`, a `module:callable` that serves forever.

    report: takes a dict of keyword arguments for the environments, once it can serve them. previous: the
    dict that it reported before a restart, which must be valid again; None at the first start. arguments:
    plain values.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Companions of one process with equal keys are shared."""
        return json.dumps([self.target, self.arguments], sort_keys=True)


class CompanionNeeded(MissionGymError):
    """An environment can't be built because its companion was not started."""

    def __init__(self, companion: Companion) -> None:
        super().__init__(companion)
        self.companion = companion

    def __str__(self) -> str:
        return f"the environment needs its companion {self.companion.target}, which was not started"


class RunningCompanion:
    """A running companion; it ends with `close`, or when this object is collected."""

    def __init__(self, companion: Companion) -> None:
        self._service = _CompanionProcess(companion)
        self.kwargs: Kwargs = self._service.kwargs  # for the environments
        self._end = weakref.finalize(self, self._service.end)  # also when the interpreter exits

    @property
    def pid(self) -> int:
        """The process that serves now."""
        return self._service.child.pid

    @property
    def is_closed(self) -> bool:
        return not self._end.alive

    def close(self) -> None:
        """End the companion for all its users."""
        self._end()


class _CompanionProcess:
    """The companion's process, and the thread that restarts it."""

    def __init__(self, companion: Companion) -> None:
        self._companion, self._pid = companion, os.getpid()
        self._ended = threading.Event()
        self._lock = threading.Lock()  # around starting and ending
        self.child, self.kwargs = _start(companion, None)
        thread = threading.Thread(target=self._restart, name=f"restarts {companion.target}", daemon=True)
        with explain_refusal():
            thread.start()

    def end(self) -> None:
        if os.getpid() != self._pid:  # a forked copy must not end it
            return
        self._ended.set()
        with self._lock:
            self.child.end()

    def _restart(self) -> None:
        wait_s = _POLL_S
        while not self._ended.wait(wait_s):
            with self._lock:
                if self._ended.is_set() or not self.child.is_gone():
                    wait_s = _POLL_S
                    continue
                self.child.end()
                try:
                    self.child, _ = _start(self._companion, self.kwargs)
                except MissionGymError:  # environments notice its absence, and their failures are counted
                    wait_s = min(2 * wait_s, _MAX_BACK_OFF_S)


_running: weakref.WeakValueDictionary[str, RunningCompanion] = weakref.WeakValueDictionary()
_running_lock = threading.Lock()


def start_companion(companion: Companion) -> RunningCompanion:
    """Start a companion, or share an equal one that this process has started; WorkerError if it fails."""
    with _running_lock:
        running = _running.get(companion.key)
        if running is None or running.is_closed:
            running = _running[companion.key] = RunningCompanion(companion)
        return running


def with_companion(build: Callable[[Kwargs], Built]) -> tuple[Built, RunningCompanion | None]:
    """Call `build` with the companion's keyword arguments, and start the companion if it is needed.

    The first call is without arguments: an environment that needs a companion raises CompanionNeeded, in
    whatever process it is built. Keep the second value as long as the first.
    """
    try:
        return build({}), None
    except CompanionNeeded as needed:
        companion = needed.companion
        needed.__traceback__ = None  # frames in a reference cycle would keep the companion alive
    running = start_companion(companion)
    return build(running.kwargs), running


def _start(companion: Companion, previous: Kwargs | None) -> tuple[Child, Kwargs]:
    from mission_gym.procs.children import BoundedLog, Child

    setup = (companion.target, dict(companion.arguments), previous)
    child = Child("mission_gym.procs.companions:serve_companion", setup, on_output=BoundedLog(None))
    name = f"the companion {companion.target}"
    try:
        if replies := child.wait(_START_S):
            return child, replies[0]
        stack = child.read_stack()
        raise WorkerTimeout(f"{name} reported nothing for {_START_S:.0f} s; its stack:\n{stack}")
    except WorkerDied as error:
        child.end()  # waits for the end of its output
        raise WorkerDied(f"{name} {child.describe_end()}; its last output:\n{child.tail()}") from error
    except BaseException:
        child.end()
        raise


def serve_companion(link: Link, setup: tuple[str, dict[str, Any], Kwargs | None]) -> None:
    """The main function of a companion's process; only its last output is kept."""
    target, arguments, previous = setup
    module, _, name = target.partition(":")
    make_importable()
    serve = getattr(importlib.import_module(module), name)
    with contextlib.suppress(KeyboardInterrupt):
        serve(link.send, previous, **arguments)
