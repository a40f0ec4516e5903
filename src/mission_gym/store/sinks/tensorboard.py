"""TensorBoard's event files, with SB3's tags.

Written by this thread. tensorboardX's own writer has a thread and a queue: where the disk refuses a record
that thread dies, and the training then waits for room in the queue for ever. It loads torch, so that this
module belongs to the process that trains.
"""

from __future__ import annotations

import math
import struct
import time
from typing import Any

from tensorboardX.proto.event_pb2 import Event as Record
from tensorboardX.proto.event_pb2 import SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from mission_gym.store.files import disk_errors
from mission_gym.store.sinks import Event, Sink, SinkContext, pick_scalars
from mission_gym.store.tables import Table

_OFTEN_S = 1.0  # between phases and the machine's use in these files: a row costs as much as it is long


class _EventFile(Table):
    """Records one after the other, each whole or not there: a torn one would hide all that follow."""

    def add(self, head: list[Any], record: Any) -> None:
        """Append a record, behind the head where the file is empty."""
        records = [record] if self._size else [*head, record]
        for record in records:
            record.wall_time = time.time()
        self._append(b"".join(map(_frame, records)))


class TensorBoard:
    """One file, which begins with the first row."""

    def __init__(self, place: SinkContext) -> None:
        self._folder = place.run.tensorboard
        self._step = place.step
        self._file: _EventFile | None = None
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
        if self._file is None:
            with disk_errors(self._folder):
                self._folder.mkdir(exist_ok=True)
            self._file = _EventFile(self._folder / f"events.out.tfevents.{time.time_ns()}")
        self._file.add(_head(self._step), Record(step=event["step"], summary=Summary(value=values)))
        if is_full:
            self._full_at = now

    def position(self) -> None:
        return None  # the head of a resumed run's file says from which step on earlier records are void

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _head(step: int | None) -> list[Any]:
    """What a file begins with; `step` is that of the checkpoint which the run goes on from."""
    version = Record(file_version="brain.Event:2")
    if step is None:
        return [version]
    return [version, Record(step=step + 1, session_log=SessionLog(status=SessionLog.START))]


def _frame(record: Any) -> bytes:
    """A record as a TFRecord: its length and itself, each with its checksum."""
    data = record.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))


SINK = Sink(lambda place, position: TensorBoard(place))
