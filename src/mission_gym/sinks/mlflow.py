"""MLflow, at the store that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import os
import re
import time

from mission_gym.sinks import Sink
from mission_gym.sinks.tracker import ERRORS, PROJECT, Facts, Row, Tracker

_BATCH = 1000  # metrics of one request, as its API allows
_MAX_PARAMETERS = 100
_UNKNOWN = re.compile(r"[^\w\-. :/]")  # what a name may not hold


class _Run:
    def __init__(self, facts: Facts, run_id: str | None) -> None:
        from mlflow.entities import Param, RunStatus
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        if run_id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else self._client.create_experiment(name)
            run_id = self._client.create_run(experiment, run_name=facts.name).info.run_id
            values = [Param(path, str(value)[:500]) for path, value in facts.config.items()]
            for start in range(0, len(values), _MAX_PARAMETERS):
                self._client.log_batch(run_id, params=values[start : start + _MAX_PARAMETERS])
        else:
            self._client.update_run(run_id, RunStatus.to_string(RunStatus.RUNNING))
        self.id = run_id

    def log(self, rows: list[Row]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [
            Metric(_UNKNOWN.sub("_", name), value, now, step)
            for step, scalars in rows
            for name, value in scalars.items()
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self.id, metrics=metrics[start : start + _BATCH])

    def close(self) -> None:
        self._client.set_terminated(self.id)


SINK = Sink(lambda place, position: Tracker("mlflow", place, _Run), errors=ERRORS, may_lose_rows=True)
