"""Append-only tables of a run: metrics.jsonl, progress.csv, monitor.csv, log.txt.

A row is in the file when `append` returns, whole or (on DiskError) not at all; a row torn by a kill
is cut off at the next opening. `offset` goes into a checkpoint and `truncate` cuts what came after
it, so that a resumed run's rows equal those of a straight run.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mission_gym.data import Episode
from mission_gym.errors import RunStateError
from mission_gym.store.files import disk_errors, plain, write_atomic


class Table:
    """A file of lines, open for appending; offsets are bytes."""

    path: Path
    _file: io.FileIO
    _size: int

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def offset(self) -> int:
        """Where the table ends now, after the disk has all of it."""
        with disk_errors(self.path):
            os.fsync(self._file.fileno())
        return self._size

    def truncate(self, offset: int) -> int:
        """Cut off what lies behind `offset`; returns how much is missing before it, 0 if nothing."""
        with disk_errors(self.path):
            self._size = min(offset, self._size)
            self._file.truncate(self._size)
        return offset - self._size

    def _open(self) -> None:
        with disk_errors(self.path):
            # Unbuffered, so that a kill loses no row.
            self._file = self.path.open("ab", buffering=0)
            self._size = self.path.read_bytes().rfind(b"\n") + 1
            self._file.truncate(self._size)

    def _append(self, line: str) -> None:
        data = memoryview(line.encode())
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
        self._append(json.dumps(plain(dict(row)), allow_nan=False) + "\n")

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """All whole rows; an empty list before the first, RunStateError for a damaged one."""
        if not path.exists():
            return []
        rows = []
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise RunStateError(f"{path}, line {number} is truncated or altered: {error}") from error
        return rows


class ProgressCsv(Table):
    """progress.csv: a column per metric, in order of first appearance; offsets are rows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        table = self._read()
        self._columns = table[0] if table else []
        self._num_rows = max(len(table) - 1, 0)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row; columns it lacks are left empty, and a new one is added to all rows."""
        new = [name for name in row if name not in self._columns]
        if new:
            self._rewrite([self._columns + new, *self._read()[1:]])
        self._append(_line(row.get(name) for name in self._columns))
        self._num_rows += 1

    def offset(self) -> int:
        super().offset()
        return self._num_rows

    def truncate(self, offset: int) -> int:
        if offset < self._num_rows:
            self._rewrite(self._read()[: offset + 1])
        return offset - self._num_rows

    def _read(self) -> list[list[str]]:
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))

    def _rewrite(self, table: list[list[str]]) -> None:
        columns = table[0]
        lines = [_line(row + [""] * (len(columns) - len(row))) for row in table]
        write_atomic(self.path, "".join(lines))
        self._columns, self._num_rows = columns, len(table) - 1
        self.close()
        self._open()


class MonitorCsv(Table):
    """monitor.csv: a row per episode as SB3's `load_results` reads it, plus outcome, env and seed.

    `t_start` is Unix time; the file's own first line stays when it exists already.
    """

    def __init__(self, path: Path, *, env_id: str, t_start: float) -> None:
        super().__init__(path)
        if not self._size:
            head = json.dumps({"t_start": t_start, "env_id": env_id})
            self._append(f"#{head}\nr,l,t,outcome,env,seed\n")

    def append(self, episode: Episode, t: float) -> None:
        """Add an episode that ended `t` seconds after `t_start`."""
        row = (
            round(episode.ret, 6),
            episode.length,
            round(t, 6),
            episode.outcome,
            episode.env_id,
            episode.seed,
        )
        self._append(_line(row))


class TextLog(Table):
    """log.txt: what happened, for people; one line an event, never cut."""

    def add(self, time_text: str, event: str, fields: Mapping[str, Any]) -> None:
        told = " ".join(f"{name}={plain(value)}" for name, value in fields.items())
        self._append(f"{time_text} {event} {' '.join(told.split())}\n")


def _line(values: Iterable[Any]) -> str:
    """One line of CSV: missing and non-finite values empty, no line breaks inside."""
    text = io.StringIO()
    cells = (plain(value) for value in values)
    csv.writer(text, lineterminator="\n").writerow(
        " ".join(cell.split()) if isinstance(cell, str) else cell for cell in cells
    )
    return text.getvalue()
