"""monitor.csv: a row per episode as SB3's `load_results` reads it, plus outcome, env and seed."""

from __future__ import annotations

import json
from pathlib import Path

from mission_gym.data import Episode
from mission_gym.store.sinks import Event, Sink
from mission_gym.store.tables import Table, format_csv_line


class MonitorCsv(Table):
    """`t_start` is Unix time; the file's own first line stays when it exists already."""

    def __init__(self, path: Path, position: int | None = None, *, env_id: str, t_start: float) -> None:
        super().__init__(path, position)
        if not self._size:
            head = json.dumps({"t_start": t_start, "env_id": env_id})
            self._append(f"#{head}\nr,l,t,outcome,env,seed\n")

    def write(self, event: Event) -> None:
        if event["event"] == "episode":
            self.append(event["episode"], event["time/elapsed_s"])

    def append(self, episode: Episode, t: float) -> None:
        """Add an episode that ended `t` seconds after `t_start`."""
        numbers = (round(episode.ret, 6), episode.length, round(t, 6))
        self._append(format_csv_line((*numbers, episode.outcome, episode.env_id, episode.seed)))


SINK = Sink(
    lambda place, position: MonitorCsv(
        place.run.monitor_csv, position, env_id=place.env_id, t_start=place.started
    )
)
