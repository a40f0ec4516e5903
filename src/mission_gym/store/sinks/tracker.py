"""The common part of tracker sinks: a thread that reads the run's metrics stream and sends it.

The thread reads metrics.jsonl, so training never waits for a tracker, and a network failure loses no row:
missing rows are sent later, at the latest by the next resume. tracker-NAME.json stores the id of the
tracker's run, which a resume continues, and the number of bytes of the stream that were sent.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import TypeAdapter

from mission_gym.config.plain_yaml import read_stored
from mission_gym.errors import RunStateError
from mission_gym.store import GROUP
from mission_gym.store.files import Count, Record, Str, read_validated, remove_leftovers, write_json
from mission_gym.store.rundir import read_lineage
from mission_gym.store.sinks import Event, Sink, SinkContext, pick_scalars
from mission_gym.store.tables import MetricsLog

PROJECT = "mission-gym"
_FIRST_S, _LONGEST_S = 1.0, 60.0  # between two attempts while a tracker can't be reached
_CLOSE_S = 30.0  # for sending the rest at the end of a run
StepRow = tuple[int, dict[str, float]]  # step, numbers


class TrackerRun(Protocol):
    """A run of the tracker's own client."""

    id: str

    def log(self, rows: list[StepRow]) -> None:
        """Send rows."""

    def close(self) -> None:
        """End the tracker's run after all rows are sent."""


class RunInfo(NamedTuple):
    """Our run, as trackers show it."""

    name: str
    path: Path
    config: dict[str, Any]  # by path, with `parent` and `parent_step` of a branch
    notify: Callable[[str], None]
    group: str | None = None  # name of the run's group


class _State(Record):
    id: Str | None = None
    sent: Count = 0


_STATE = TypeAdapter(_State)
Connect = Callable[[RunInfo, str | None], TrackerRun]  # opens the tracker's run with this id, or a new one


class Tracker:
    """The sink of one tracker."""

    def __init__(self, name: str, context: SinkContext, connect: Connect) -> None:
        self._name, self._context, self._connect = name, context, connect
        self._path = context.run.path / _state_file(name)
        remove_leftovers(self._path.parent, (self._path.name,))
        self._state = read_validated(self._path, _STATE) if self._path.exists() else _State()
        size = context.run.metrics_jsonl.stat().st_size  # rows after the checkpoint were cut off
        self._state.sent = min(self._state.sent, size)
        self._news, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def write(self, event: Event) -> None:
        if event["event"] in ("progress", "eval"):
            self._news.set()

    def position(self) -> None:
        return None

    def close(self) -> None:
        self._end.set()
        self._news.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            text = f"{self._name} has not answered for {_CLOSE_S:.0f} s; a resume sends it the rest"
            self._context.notify(text)

    def _follow(self) -> None:
        client: TrackerRun | None = None
        wait_s, is_down, is_last = _FIRST_S, False, False
        while not is_last:
            self._news.wait()
            self._news.clear()
            is_last = self._end.is_set()
            try:
                client = client or self._open()
                self._send(client)
                if is_last:
                    client.close()
            except Exception as error:  # noqa: BLE001  border: the tracker's client
                if not is_down:
                    cause = " ".join(str(error).split())[:300] or type(error).__name__
                    text = f"{self._name}: {cause}; training continues, and rows are sent later"
                    self._context.notify(text)
                is_down = True
                self._end.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_S)
                self._news.set()
            else:
                if is_down:
                    self._context.notify(f"{self._name} can be reached again and has all rows")
                wait_s, is_down = _FIRST_S, False

    def _open(self) -> TrackerRun:
        run = self._context.run
        lineage = read_lineage(run)
        config = {path: stored.value for path, stored in read_stored(run.config_yaml).items()}
        if lineage.parent:
            config |= {"parent": lineage.parent, "parent_step": lineage.parent_step}
        info = RunInfo(run.name, run.path, config, self._context.notify, os.environ.get(GROUP))
        client = self._connect(info, self._state.id)
        self._state.id = client.id
        self._store()
        return client

    def _send(self, client: TrackerRun) -> None:
        while True:
            events, end = MetricsLog.read_from(self._context.run.metrics_jsonl, self._state.sent)
            if end == self._state.sent:
                return
            scalars = [(event["step"], pick_scalars(event)) for event in events if "step" in event]
            rows = [(step, _pick_finite(found)) for step, found in scalars if found]
            if rows:
                client.log(rows)
            self._state.sent = end
            self._store()

    def _store(self) -> None:
        write_json(self._path, self._state.model_dump(), durable=False)


def make_tracker_sink(name: str, connect: Connect, *owns: str) -> Sink:
    """Make a tracker's record; owns: globs of the files that its client writes into the run."""
    return Sink(
        lambda context, position: Tracker(name, context, connect),
        owns=(_state_file(name), *owns),
        errors=(RunStateError, OSError),  # when it is opened: a damaged tracker-NAME.json
        may_lose_rows=True,
    )


def _state_file(name: str) -> str:
    return f"tracker-{name}.json"


def _pick_finite(scalars: dict[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in scalars.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
