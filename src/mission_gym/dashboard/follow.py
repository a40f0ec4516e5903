"""What is new, as server-sent events: rows of one run from a byte on, its status, and the index of all runs.

A page that comes back after a break names the last event it saw (its id), and goes on from there.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from mission_gym.dashboard.index import Index
from mission_gym.dashboard.rows import make_columns, read_added
from mission_gym.errors import MissionGymError
from mission_gym.store.files import plain
from mission_gym.store.rundir import RunDir

_EVERY_S = 1.0
_PANELS_S = 5.0  # between two times that panels are called old
_ALIVE_S = 15.0  # between signs of life, by which a dead connection is found
_PANEL_FILES = ("config.yaml", "plan.json", "log.txt", "monitor.csv", "env-output.txt", "eval")


def encode(document: Any) -> str:
    """A document as strict JSON."""
    return json.dumps(plain(document), allow_nan=False, separators=(",", ":"))


def read_status(run: RunDir) -> dict[str, Any]:
    """The status, or why it can't be read."""
    try:
        return run.read_status()
    except MissionGymError as error:
        return {"state": "damaged", "cause": str(error)}


async def follow_run(
    index: Index, name: str, offset: int, is_ending: Callable[[], bool]
) -> AsyncIterator[str]:
    """`rows` with columns of what was added behind byte `offset`, `status`, `panels` when other files
    changed (every few seconds at most, as they change often), `reset` when the stream was cut, `gone` when
    there is no such run any more."""
    status: dict[str, Any] | None = None
    panels, told_at = None, -_PANELS_S

    def look() -> list[str]:
        nonlocal offset, status, panels, told_at
        run = index.find(name)
        if run is None:
            status = None  # which tells the page when it is back
            return [_event("gone", {})]
        events = []
        part = read_added(run.metrics_jsonl, offset)
        if part is None:
            return [_event("reset", {})]
        if part.end != offset:
            offset = part.end
            events.append(_event("rows", {"columns": make_columns(part.rows), "end": offset}, offset))
        if (now := read_status(run)) != status:
            status = now
            events.append(_event("status", status))
        stamp = stamp_files(run)
        if panels is None:
            panels = stamp
        elif stamp != panels and time.monotonic() - told_at >= _PANELS_S:
            panels, told_at = stamp, time.monotonic()
            events.append(_event("panels", {}))
        return events

    async for text in _repeat(look, is_ending):
        yield text


async def follow_index(index: Index, version: int, is_ending: Callable[[], bool]) -> AsyncIterator[str]:
    """`runs` with the rows that changed behind `version`."""

    def look() -> list[str]:
        nonlocal version
        found = index.changes(version)
        if found["version"] == version:
            return []
        version = found["version"]
        return [_event("runs", found, version)]

    async for text in _repeat(look, is_ending):
        yield text


async def _repeat(look: Callable[[], list[str]], is_ending: Callable[[], bool]) -> AsyncIterator[str]:
    said_at = 0.0
    while not is_ending():
        events = await asyncio.to_thread(look)
        now = time.monotonic()
        if not events and now - said_at >= _ALIVE_S:
            events = [": alive\n\n"]
        if events:
            said_at = now
            yield "".join(events)
        await asyncio.sleep(_EVERY_S)


def _event(kind: str, document: Any, number: int | None = None) -> str:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: {encode(document)}\n\n"


def stamp_files(run: RunDir, *more: str) -> list[tuple[int, int]]:
    """When the files behind the panels, and more of them, last changed, and their sizes."""
    stamps = []
    for name in (*_PANEL_FILES, *more):
        try:
            status = os.stat(run.path / name)
            stamps.append((status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append((0, 0))
    return stamps
