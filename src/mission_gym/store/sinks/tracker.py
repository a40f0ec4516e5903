"""What the sinks of trackers share: a thread that follows the run's own stream and sends it on.

It reads metrics.jsonl, so that training never waits for a tracker, a network that is down costs no row, and
what is missing is sent later, by the next resume at the latest. tracker-NAME.json keeps the id of the
tracker's run, which a resume goes on with, and the byte up to which it has the stream.
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
from mission_gym.store.checked import Count, Record, Str, read_checked
from mission_gym.store.files import write_json
from mission_gym.store.lineage import read_lineage
from mission_gym.store.sinks import Event, SinkContext, pick_scalars
from mission_gym.store.tables import MetricsLog
from mission_gym.store.variables import GROUP

PROJECT = "mission-gym"
_FIRST_S, _LONGEST_S = 1.0, 60.0  # between two tries while a tracker can't be reached
_CLOSE_S = 30.0  # at the end of a run, for what is not sent yet
Row = tuple[int, dict[str, float]]  # step, numbers


class Client(Protocol):
    """A run of the tracker."""

    id: str

    def log(self, rows: list[Row]) -> None:
        """Send rows."""

    def close(self) -> None:
        """End the tracker's run, with all that was sent."""


class Facts(NamedTuple):
    """What a tracker is told about a run."""

    name: str
    path: Path
    config: dict[str, Any]  # by path, with `parent` and `parent_step` of a branch
    tell: Callable[[str], None]
    group: str | None = None  # the group that the run is a member of


class _State(Record):
    id: Str | None = None
    sent: Count = 0


_STATE = TypeAdapter(_State)


class Tracker:
    """The sink. connect: opens the tracker's run of this id, or a new one."""

    def __init__(self, name: str, place: SinkContext, connect: Callable[[Facts, str | None], Client]) -> None:
        self._name, self._place, self._connect = name, place, connect
        self._path = place.run.path / f"tracker-{name}.json"
        self._state = read_checked(self._path, _STATE) if self._path.exists() else _State()
        size = place.run.metrics_jsonl.stat().st_size  # rows behind a checkpoint were cut, and are made again
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
            self._place.tell(
                f"{self._name} has not answered for {_CLOSE_S:.0f} s; a resume sends it the rest"
            )

    def _follow(self) -> None:
        client: Client | None = None
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
            except Exception as error:  # noqa: BLE001 - a border: libraries of others fail in every way
                if not is_down:
                    cause = " ".join(str(error).split())[:300] or type(error).__name__
                    self._place.tell(
                        f"{self._name}: {cause}; training goes on, and rows are sent when they can be"
                    )
                is_down = True
                self._end.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_S)
                self._news.set()
            else:
                if is_down:
                    self._place.tell(f"{self._name} is reached again, and has all rows")
                wait_s, is_down = _FIRST_S, False

    def _open(self) -> Client:
        run = self._place.run
        lineage = read_lineage(run)
        config = {path: stored.value for path, stored in read_stored(run.config_yaml).items()}
        if lineage.parent:
            config |= {"parent": lineage.parent, "parent_step": lineage.parent_step}
        facts = Facts(run.name, run.path, config, self._place.tell, os.environ.get(GROUP))
        client = self._connect(facts, self._state.id)
        self._state.id = client.id
        self._keep()
        return client

    def _send(self, client: Client) -> None:
        while True:
            events, end = MetricsLog.read_from(self._place.run.metrics_jsonl, self._state.sent)
            if end == self._state.sent:
                return
            rows = [
                (event["step"], _pick_finite(scalars)) for event in events if (scalars := pick_scalars(event))
            ]
            if rows:
                client.log(rows)
            self._state.sent = end
            self._keep()

    def _keep(self) -> None:
        write_json(self._path, self._state.model_dump(), durable=False)


def _pick_finite(scalars: dict[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in scalars.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


ERRORS = (RunStateError, OSError)  # of opening: a damaged tracker-NAME.json
