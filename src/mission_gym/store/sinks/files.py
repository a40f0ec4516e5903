"""The files that every run writes: metrics.jsonl, progress.csv, monitor.csv and log.txt."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from mission_gym.data import Episode
from mission_gym.store.files import disk_errors, remove_leftovers, to_json, write_atomic
from mission_gym.store.sinks import Event, Sink, pick_scalars
from mission_gym.store.tables import MetricsLog, Table, format_csv_line


class MetricsJsonl(MetricsLog):
    """metrics.jsonl: every event but episodes, unchanged. All reports read it."""

    def write(self, event: Event) -> None:
        if event["event"] != "episode":
            self.append(event)


class ProgressCsv(Table):
    """progress.csv: a row per progress or evaluation event, with SB3's column names.

    Columns are in the order of their first appearance; positions are rows.
    """

    def __init__(self, path: Path, position: int | None = None) -> None:
        remove_leftovers(path.parent, (path.name,))
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
        """Append a row; missing columns are empty, and a new column is added to all rows."""
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


class MonitorCsv(Table):
    """monitor.csv: a row per episode for SB3's `load_results`, with outcome, env and seed.

    `t_start` is Unix time; an existing file keeps its own header.
    """

    def __init__(self, path: Path, position: int | None = None, *, env_id: str, t_start: float) -> None:
        super().__init__(path, position)
        if not self._size:
            head = json.dumps({"t_start": t_start, "env_id": env_id})
            self._append(f"#{head}\nr,l,t,outcome,env,seed\n")

    def write(self, event: Event) -> None:
        if event["event"] == "episode":
            self.append(event["episode"], event["time/elapsed_s"])

    def append(self, episode: Episode, t: float) -> None:
        """Append an episode that ended `t` seconds after `t_start`."""
        numbers = (round(episode.ret, 6), episode.length, round(t, 6))
        self._append(format_csv_line((*numbers, episode.outcome, episode.env_id, episode.seed)))


class TextLog(Table):
    """log.txt: a line `time event name=value ...` per event, without rows of numbers; never truncated."""

    def write(self, event: Event) -> None:
        match event["event"]:
            case "progress":
                for message in event.get("time/alarms", ()):
                    self._add("warning", {"step": event["step"], "message": message})
            case "timeline" | "episode":
                pass
            case kind:
                self._add(kind, {name: value for name, value in event.items() if name != "event"})

    def position(self) -> None:
        return None

    def _add(self, kind: str, fields: Mapping[str, Any]) -> None:
        text = " ".join(f"{name}={to_json(value)}" for name, value in fields.items())
        self._append(f"{datetime.now():%Y-%m-%d %H:%M:%S} {kind} {' '.join(text.split())}\n")


METRICS = Sink(lambda context, at: MetricsJsonl(context.run.metrics_jsonl, at), ("metrics.jsonl",))
PROGRESS = Sink(lambda context, at: ProgressCsv(context.run.progress_csv, at), ("progress.csv",))
MONITOR = Sink(
    lambda context, at: MonitorCsv(
        context.run.monitor_csv, at, env_id=context.env_id, t_start=context.started
    ),
    ("monitor.csv",),
)
LOG = Sink(lambda context, _: TextLog(context.run.log_txt), ("log.txt",))
