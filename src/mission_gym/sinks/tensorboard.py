"""TensorBoard's event files, with SB3's tags.

Written by this thread. tensorboardX's own writer has a thread and a queue: where the disk refuses a record
that thread dies, and the training then waits for room in the queue for ever. It loads torch, so that this
module belongs to the process that trains.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event as Record
from tensorboardX.proto.event_pb2 import SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from mission_gym.sinks import Event, Place, Sink, pick_scalars
from mission_gym.store.files import disk_errors

_OFTEN_S = 1.0  # between phases and the machine's use in these files: a row costs as much as it is long


class TensorBoard:
    """One event file, or another one after each failure: a torn record hides all that follow it."""

    def __init__(self, place: Place) -> None:
        self._folder = place.run.tensorboard
        self._purge_step = None if place.step is None else place.step + 1
        self._file: Any = None
        self._full_at = -math.inf  # of time.monotonic

    def write(self, event: Event) -> None:
        scalars = pick_scalars(event)
        if scalars is None:
            return
        now = time.monotonic()
        is_full = now - self._full_at >= _OFTEN_S
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in scalars.items()
            if (is_full or not name.startswith(("phase/", "machine/")))
            and isinstance(value, int | float)
            and math.isfinite(value)
        ]
        with disk_errors(self._folder):
            try:
                if self._file is None:
                    self._open()
                self._add(Record(step=event["step"], summary=Summary(value=values)))
                self._file.flush()
            except OSError:
                self._drop()
                raise
        if is_full:
            self._full_at = now

    def position(self) -> None:
        return None  # a resumed run says from which step on earlier records are void

    def close(self) -> None:
        if self._file is not None:
            with disk_errors(self._folder):
                self._file.close()

    def _open(self) -> None:
        self._folder.mkdir(exist_ok=True)
        # The name tells seconds; two of one second are two files, in their order.
        self._file = EventsWriter(str(self._folder / "events"), f".{time.time_ns()}")
        if self._purge_step is not None:
            self._add(Record(step=self._purge_step, session_log=SessionLog(status=SessionLog.START)))
            self._purge_step = None

    def _add(self, record: Any) -> None:
        record.wall_time = time.time()
        self._file.write_event(record)

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # it says again what its write said
                file.close()


def _open(place: Place, position: int | None) -> TensorBoard:
    return TensorBoard(place)


SINK = Sink(_open)
