"""Trackio: a local store (TRACKIO_DIR), or the Space that its own settings name."""

from __future__ import annotations

import os

from mission_gym.store.sinks import Sink
from mission_gym.store.sinks.tracker import ERRORS, PROJECT, Facts, Row, Tracker


class _Run:
    def __init__(self, facts: Facts, run_id: str | None) -> None:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        self.id = run_id or facts.name  # its runs are known by name
        resume = "never" if run_id is None else "allow"
        self._run = trackio.init(
            project, name=self.id, group=facts.group, config=facts.config, resume=resume, embed=False
        )

    def log(self, rows: list[Row]) -> None:
        for step, scalars in rows:
            self._run.log(scalars, step=step)

    def close(self) -> None:
        self._run.finish()


SINK = Sink(lambda place, position: Tracker("trackio", place, _Run), errors=ERRORS, may_lose_rows=True)
