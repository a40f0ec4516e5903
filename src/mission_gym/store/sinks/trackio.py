"""Trackio: a local store (TRACKIO_DIR), or the Space that its own settings name."""

from __future__ import annotations

import os

from mission_gym.store.sinks.tracker import PROJECT, RunInfo, StepRow, make_tracker_sink


class _TrackioRun:
    def __init__(self, info: RunInfo, run_id: str | None) -> None:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        self.id = run_id or info.name  # Trackio identifies runs by name
        resume = "never" if run_id is None else "allow"
        self._run = trackio.init(
            project, name=self.id, group=info.group, config=info.config, resume=resume, embed=False
        )

    def log(self, rows: list[StepRow]) -> None:
        for step, scalars in rows:
            self._run.log(scalars, step=step)

    def close(self) -> None:
        self._run.finish()


SINK = make_tracker_sink("trackio", _TrackioRun)
