"""Changes as server-sent events: new rows of one run, its status, and the index of all runs.

All streams wake at the same times, and results that several of them need are computed once. A page that
reconnects sends the id of the last event that it saw, and continues from there.
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
from mission_gym.report.dashboard.rows import Stamp, make_columns, read_added, stamp
from mission_gym.store.files import to_json
from mission_gym.store.rundir import RunDir

_EVERY_S = 1.0
_PANELS_S = 5.0  # between two events that panels changed
_ALIVE_S = 15.0  # between keep-alive messages, which reveal a dead connection
_MOST_STREAMS = 100  # each holds a connection; a browser opens six to a server at most
_PANEL_FILES = ("config.yaml", "plan.json", "log.txt", "monitor.csv", "env-output.txt", "eval")


def encode(document: Any) -> str:
    """A document as strict JSON."""
    return json.dumps(to_json(document), allow_nan=False, separators=(",", ":"))


def read_status(run: RunDir) -> dict[str, Any]:
    """The status, or the reason that it can't be read."""
    try:
        return run.read_status()
    except MissionGymError as error:
        return {"state": "damaged", "cause": str(error)}


class _RunNews(NamedTuple):
    """The present state of a run, from an offset of its stream on."""

    end: int | None  # of its stream; None if it was cut
    rows: str  # the new rows, as an event
    status: str  # the status, as an event
    stamps: list[Stamp]


class Follower:
    """The event streams of one server."""

    def __init__(self, index: Index, is_ending: Callable[[], bool]) -> None:
        self._index, self._is_ending = index, is_ending
        self._lock = threading.Lock()
        self._tick, self._results = 0, dict[Any, Any]()
        self._num_streams = 0

    @property
    def is_full(self) -> bool:
        """Whether no further stream should be opened; a page tries again later."""
        return self._num_streams >= _MOST_STREAMS

    async def follow_run(self, name: str, offset: int) -> AsyncIterator[str]:
        """The events of a run: `rows` (columns of new rows from byte `offset` on), `status`, `panels` (other
        files changed, every few seconds at most), `reset` (the stream was cut), `gone` (the run was removed).
        """
        status = ""
        panels: list[Stamp] | None = None
        sent_at = -_PANELS_S

        def poll() -> list[str]:
            nonlocal offset, status, panels, sent_at
            now = self._compute_once((name, offset), lambda: self._read_run(name, offset))
            if now is None:
                status = ""  # so that it is sent again if the run returns
                return [_event("gone", {})]
            if now.end is None:
                return [_event("reset", {})]
            offset = now.end
            events = [now.rows]
            if now.status != status:
                status = now.status
                events.append(status)
            if panels is None:
                panels = now.stamps
            elif now.stamps != panels and time.monotonic() - sent_at >= _PANELS_S:
                panels, sent_at = now.stamps, time.monotonic()
                events.append(_event("panels", {}))
            return events

        async for text in self._repeat(poll):
            yield text

    async def follow_index(self, version: int) -> AsyncIterator[str]:
        """The events `runs`, with the rows that changed after `version`."""

        def poll() -> list[str]:
            nonlocal version
            version, text = self._compute_once(version, lambda: self._read_index(version))
            return [text]

        async for text in self._repeat(poll):
            yield text

    def _read_run(self, name: str, offset: int) -> _RunNews | None:
        run = self._index.find(name)
        if run is None:
            return None
        part = read_added(run.metrics_jsonl, offset)
        if part is None:
            return _RunNews(None, "", "", [])
        rows = ""
        if part.end != offset:
            rows = _event("rows", {"columns": make_columns(part.rows), "end": part.end}, part.end)
        return _RunNews(part.end, rows, _event("status", read_status(run)), stamp_files(run))

    def _read_index(self, version: int) -> tuple[int, str]:
        found = self._index.changes(version)
        now = found["version"]
        return now, "" if now == version else _event("runs", found, now)

    def _compute_once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, shared by all streams in the same tick."""
        with self._lock:
            tick = int(time.monotonic() / _EVERY_S)
            if tick != self._tick:
                self._tick, self._results = tick, {}
            if key not in self._results:
                self._results[key] = compute()
            return self._results[key]

    async def _repeat(self, poll: Callable[[], list[str]]) -> AsyncIterator[str]:
        sent_at = 0.0
        self._num_streams += 1
        try:
            while not self._is_ending():
                text = "".join(await asyncio.to_thread(poll))
                now = time.monotonic()
                if not text and now - sent_at >= _ALIVE_S:
                    text = ": alive\n\n"
                if text:
                    sent_at = now
                    yield text
                await asyncio.sleep(_EVERY_S - time.monotonic() % _EVERY_S)  # all streams wake together
        finally:
            self._num_streams -= 1


def _event(kind: str, document: Any, number: int | None = None) -> str:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: {encode(document)}\n\n"


def stamp_files(run: RunDir, *more: str) -> list[Stamp]:
    """The stamps of the files behind the panels, and of more files."""
    return [stamp(run.path / name) for name in (*_PANEL_FILES, *more)]
