"""Append-only files of lines: the base of a run's tables, the metrics stream, and journals.

When `append` returns, the row is in the file, whole or (on DiskError) not at all. A row torn by a kill is cut
off when the file is next opened. A checkpoint stores `position`; a table opened at a position drops later
rows, so that a resumed run's rows equal those of an uninterrupted run.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from mission_gym.errors import RunStateError
from mission_gym.store import lock
from mission_gym.store.files import disk_errors, open_plain, to_json

_CHUNK_BYTES = 1 << 16
_ROW_BYTES = 16 << 20  # at most
_WAIT_S = 30.0  # for other writers of a journal, each of which takes milliseconds


class Table:
    """A file of lines, open for appending; positions are bytes."""

    path: Path
    _file: io.FileIO
    _size: int

    def __init__(self, path: Path, position: int | None = None) -> None:
        self.path = path
        self._open(position)

    def close(self) -> None:
        self._file.close()

    def position(self) -> int | None:
        """Return the size, after all of it is on the disk."""
        with disk_errors(self.path):
            os.fsync(self._file.fileno())
        return self._size

    def _open(self, position: int | None = None) -> None:
        with disk_errors(self.path):
            # Unbuffered, so that a kill loses no row.
            descriptor = open_plain(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._file = io.FileIO(descriptor, "ab")
            whole = find_end(descriptor)
            self._size = whole if position is None else min(position, whole)
            self._file.truncate(self._size)

    def _append(self, line: str | bytes) -> None:
        data = memoryview(line.encode() if isinstance(line, str) else line)
        with disk_errors(self.path):
            written = 0
            try:
                while written < len(data):
                    written += self._file.write(data[written:]) or 0
            finally:
                if written < len(data):  # half a row would spoil the next one
                    self._file.truncate(self._size)
            self._size += written


class MetricsLog(Table):
    """metrics.jsonl: one JSON object per line, NaN and infinity as null."""

    def append(self, row: Mapping[str, Any]) -> None:
        self.append_all([row])

    def append_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append several rows, all of them or none."""
        self._append("".join(json.dumps(to_json(dict(row)), allow_nan=False) + "\n" for row in rows))

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """Return all whole rows, none if the file does not exist; RunStateError for a damaged one."""
        return list(MetricsLog.stream(path))

    @staticmethod
    def stream(path: Path) -> Iterator[dict[str, Any]]:
        """Yield the rows that `read` returns; a file may be larger than the memory."""
        try:
            with path.open("rb") as file:
                number = 0
                while line := file.readline(_ROW_BYTES):
                    number += 1
                    if line.endswith(b"\n"):
                        yield _parse_row(line, f"{path}, line {number}")
                    elif len(line) == _ROW_BYTES:
                        raise RunStateError(f"{path}, line {number} is too long for a row; remove the line")
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunStateError(f"can't read {path}: {error.strerror or error}") from error

    @staticmethod
    def read_from(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
        """Return about 1 MiB of whole rows from a byte offset on, and the offset behind them."""
        with path.open("rb") as file:
            file.seek(offset)
            lines = file.read(1 << 20)
            lines += file.readline(_ROW_BYTES)
        whole = lines[: lines.rfind(b"\n") + 1]
        rows = [_parse_row(line, f"{path}, after byte {offset}") for line in whole.splitlines()]
        return rows, offset + len(whole)


class Journal:
    """JSON lines that several processes append to; a row is on the disk when `append` returns.

    The file is opened for each append, so a handle costs nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows, all of them or none."""
        with (
            lock.hold(self.path.with_name(f".{self.path.name}-lock"), wait_s=_WAIT_S),
            closing(MetricsLog(self.path)) as table,
        ):
            table.append_all(rows)
            table.position()  # waits for the disk

    def read(self) -> list[dict[str, Any]]:
        """Return all whole rows; RunStateError for a damaged one."""
        return MetricsLog.read(self.path)


def find_end(descriptor: int) -> int:
    """Return the position behind the last line break of a file, read from its end."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        os.lseek(descriptor, start, os.SEEK_SET)
        at = os.read(descriptor, end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _parse_row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunStateError(f"{where} is truncated or altered: {error}") from error
    if not isinstance(row, dict):
        raise RunStateError(f"{where} is truncated or altered: it is not an event")
    return row


def format_csv_line(values: Iterable[Any]) -> str:
    """Format one line of CSV; missing and non-finite values are empty, line breaks become blanks. A text that
    a spreadsheet would calculate gets a quote in front."""
    text = io.StringIO()
    cells = (to_json(value) for value in values)
    csv.writer(text, lineterminator="\n").writerow(
        _make_inert(" ".join(cell.split())) if isinstance(cell, str) else cell for cell in cells
    )
    return text.getvalue()


def _make_inert(cell: str) -> str:
    if not cell.startswith(("=", "+", "-", "@")):
        return cell
    try:
        float(cell)  # a number that was read from another table
    except ValueError:
        return f"'{cell}"
    return cell
