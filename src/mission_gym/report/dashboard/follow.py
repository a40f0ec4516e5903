"""What is new, as server-sent events: rows of one run from a byte on, its status, and the index of all runs.

All streams look at the same moments, and what several of them ask for then is made once. A page that comes
back after a break names the last event it saw (its id), and goes on from there.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from mission_gym.errors import MissionGymError
from mission_gym.report.dashboard.index import Index
from mission_gym.report.dashboard.rows import make_columns, read_added
from mission_gym.report.dashboard.stamps import Stamp, stamp
from mission_gym.store.files import to_json
from mission_gym.store.rundir import RunDir

_EVERY_S = 1.0
_PANELS_S = 5.0  # between two times that panels are called old
_ALIVE_S = 15.0  # between signs of life, by which a dead connection is found
_PANEL_FILES = ("config.yaml", "plan.json", "log.txt", "monitor.csv", "env-output.txt", "eval")


def encode(document: Any) -> str:
    """A document as strict JSON."""
    return json.dumps(to_json(document), allow_nan=False, separators=(",", ":"))


def read_status(run: RunDir) -> dict[str, Any]:
    """The status, or why it can't be read."""
    try:
        return run.read_status()
    except MissionGymError as error:
        return {"state": "damaged", "cause": str(error)}


class _Sight(NamedTuple):
    """A run as it is at one moment, seen from a byte of its stream."""

    end: int | None  # of its stream; None: it was cut
    rows: str  # what was added, as an event
    status: str  # the same of its status
    stamps: list[Stamp]


class Follower:
    """The streams of one server."""

    def __init__(self, index: Index, is_ending: Callable[[], bool]) -> None:
        self._index, self._is_ending = index, is_ending
        self._lock = threading.Lock()
        self._tick, self._made = 0, dict[Any, Any]()

    async def follow_run(self, name: str, offset: int) -> AsyncIterator[str]:
        """`rows` with columns of what was added behind byte `offset`, `status`, `panels` when other files
        changed (every few seconds at most, as they change often), `reset` when the stream was cut, `gone`
        when there is no such run any more."""
        status = ""
        panels: list[Stamp] | None = None
        told_at = -_PANELS_S

        def look() -> list[str]:
            nonlocal offset, status, panels, told_at
            sight = self._make_once((name, offset), lambda: self._see(name, offset))
            if sight is None:
                status = ""  # which tells the page when it is back
                return [_event("gone", {})]
            if sight.end is None:
                return [_event("reset", {})]
            offset = sight.end
            events = [sight.rows]
            if sight.status != status:
                status = sight.status
                events.append(status)
            if panels is None:
                panels = sight.stamps
            elif sight.stamps != panels and time.monotonic() - told_at >= _PANELS_S:
                panels, told_at = sight.stamps, time.monotonic()
                events.append(_event("panels", {}))
            return events

        async for text in self._repeat(look):
            yield text

    async def follow_index(self, version: int) -> AsyncIterator[str]:
        """`runs` with the rows that changed behind `version`."""

        def look() -> list[str]:
            nonlocal version
            version, text = self._make_once(version, lambda: self._see_changes(version))
            return [text]

        async for text in self._repeat(look):
            yield text

    def _see(self, name: str, offset: int) -> _Sight | None:
        run = self._index.find(name)
        if run is None:
            return None
        part = read_added(run.metrics_jsonl, offset)
        if part is None:
            return _Sight(None, "", "", [])
        rows = ""
        if part.end != offset:
            rows = _event("rows", {"columns": make_columns(part.rows), "end": part.end}, part.end)
        return _Sight(part.end, rows, _event("status", read_status(run)), stamp_files(run))

    def _see_changes(self, version: int) -> tuple[int, str]:
        found = self._index.changes(version)
        now = found["version"]
        return now, "" if now == version else _event("runs", found, now)

    def _make_once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once for all that ask for it at the same tick."""
        with self._lock:
            tick = int(time.monotonic() / _EVERY_S)
            if tick != self._tick:
                self._tick, self._made = tick, {}
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    async def _repeat(self, look: Callable[[], list[str]]) -> AsyncIterator[str]:
        said_at = 0.0
        while not self._is_ending():
            text = "".join(await asyncio.to_thread(look))
            now = time.monotonic()
            if not text and now - said_at >= _ALIVE_S:
                text = ": alive\n\n"
            if text:
                said_at = now
                yield text
            await asyncio.sleep(_EVERY_S - time.monotonic() % _EVERY_S)  # all streams wake together


def _event(kind: str, document: Any, number: int | None = None) -> str:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: {encode(document)}\n\n"


def stamp_files(run: RunDir, *more: str) -> list[Stamp]:
    """When the files behind the panels, and more of them, last changed, and their sizes."""
    return [stamp(run.path / name) for name in (*_PANEL_FILES, *more)]
