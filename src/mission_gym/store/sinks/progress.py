"""progress.csv: a row for each row of metrics and each evaluation, with SB3's column names."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mission_gym.store.files import disk_errors, write_atomic
from mission_gym.store.sinks import Event, Sink, pick_scalars
from mission_gym.store.tables import Table, format_csv_line


class ProgressCsv(Table):
    """A column per metric, in order of first appearance; positions are rows."""

    def __init__(self, path: Path, position: int | None = None) -> None:
        super().__init__(path)
        table = self._read()
        self._columns = table[0] if table else []
        self._num_rows = max(len(table) - 1, 0)
        if position is not None and position < self._num_rows:
            self._rewrite(table[: position + 1])

    def write(self, event: Event) -> None:
        scalars = pick_scalars(event)
        if scalars is not None:
            self.append({"time/total_timesteps": event["step"], **scalars})

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row; columns it lacks are left empty, and a new one is added to all rows."""
        new = [name for name in row if name not in self._columns]
        if new:
            with disk_errors(self.path):
                self._rewrite([self._columns + new, *self._read()[1:]])
        self._append(format_csv_line(row.get(name) for name in self._columns))
        self._num_rows += 1

    def position(self) -> int:
        super().position()
        return self._num_rows

    def _read(self) -> list[list[str]]:
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))

    def _rewrite(self, table: list[list[str]]) -> None:
        columns = table[0]
        lines = [format_csv_line(row + [""] * (len(columns) - len(row))) for row in table]
        write_atomic(self.path, "".join(lines))
        self._columns, self._num_rows = columns, len(table) - 1
        self.close()
        self._open()


SINK = Sink(lambda place, position: ProgressCsv(place.run.progress_csv, position))
