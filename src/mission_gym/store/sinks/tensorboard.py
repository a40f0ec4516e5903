"""TensorBoard's event files, with SB3's tags.

They are written by this thread. tensorboardX's own writer has a thread and a queue: if the disk refuses a
record, that thread dies, and training then waits forever for room in the queue. tensorboardX loads torch, so
it is imported when a sink is opened.
"""

from __future__ import annotations

import math
import struct
import time
from typing import Any

from mission_gym.store.files import disk_errors
from mission_gym.store.sinks import Event, Sink, SinkContext, pick_scalars
from mission_gym.store.tables import Table

_OFTEN_S = 1.0  # between rows with phases and the machine's use, which make a row several times as long


class _EventFile(Table):
    """Records one after the other, each complete or absent: a torn one would hide all that follow."""

    def add(self, records: list[Any]) -> None:
        for record in records:
            record.wall_time = time.time()
        self._append(b"".join(map(_frame, records)))

    @property
    def is_empty(self) -> bool:
        return not self._size


class TensorBoard:
    """One event file, created with the first row."""

    def __init__(self, context: SinkContext) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2

        self._events, self._summaries = event_pb2, summary_pb2
        self._folder = context.run.tensorboard
        self._step = context.step
        self._file: _EventFile | None = None
        self._full_at = -math.inf  # of time.monotonic

    def write(self, event: Event) -> None:
        scalars = pick_scalars(event)
        if scalars is None:
            return
        now = time.monotonic()
        is_full = now - self._full_at >= _OFTEN_S
        values = [
            self._summaries.Summary.Value(tag=name, simple_value=value)
            for name, value in scalars.items()
            if (is_full or not name.startswith(("phase/", "machine/")))
            and isinstance(value, int | float)
            and math.isfinite(value)
        ]
        if self._file is None:
            with disk_errors(self._folder):
                self._folder.mkdir(exist_ok=True)
            self._file = _EventFile(self._folder / f"events.out.tfevents.{time.time_ns()}")
        row = self._events.Event(step=event["step"], summary=self._summaries.Summary(value=values))
        self._file.add([*self._head(), row] if self._file.is_empty else [row])
        if is_full:
            self._full_at = now

    def _head(self) -> list[Any]:
        """Return the records that a file starts with; those of a resumed run void later steps of older
        files."""
        head = [self._events.Event(file_version="brain.Event:2")]
        if self._step is not None:
            restart = self._events.SessionLog(status=self._events.SessionLog.START)
            head.append(self._events.Event(step=self._step + 1, session_log=restart))
        return head

    def position(self) -> None:
        return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _frame(record: Any) -> bytes:
    """Frame a record as a TFRecord: length and data, each with its checksum."""
    data = record.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
    from tensorboardX.record_writer import masked_crc32c

    return struct.pack("<I", masked_crc32c(data))


SINK = Sink(lambda context, _: TensorBoard(context), ("tensorboard/events.out.tfevents.*",))
