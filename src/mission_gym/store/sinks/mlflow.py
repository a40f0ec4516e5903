"""MLflow, at the store that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import os
import re
import time

from mission_gym.store.rundir import RunDir
from mission_gym.store.sinks import Sink
from mission_gym.store.sinks.tracker import ERRORS, PROJECT, Facts, Row, Tracker

_BATCH = 1000  # metrics of one request, as its API allows
_MAX_PARAMETERS = 100
_ENDS = {"failed": "FAILED", "stopped": "KILLED"}  # our states, as it calls them
_UNKNOWN = re.compile(r"[^\w\-. :/]")  # what a name may not hold


class _Run:
    def __init__(self, facts: Facts, run_id: str | None) -> None:
        from mlflow.entities import Param, RunStatus
        from mlflow.tracking import MlflowClient

        self._client, self._path = MlflowClient(), facts.path
        self._unsent: list[
            Param
        ] = []  # sent once the id is kept: a failure here would cost a new run at each try
        if run_id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else self._client.create_experiment(name)
            tags = {"tags": {"group": facts.group}} if facts.group else {}
            run_id = self._client.create_run(experiment, run_name=facts.name, **tags).info.run_id
            self._unsent = [Param(path, str(value)[:500]) for path, value in facts.config.items()]
        else:
            self._client.update_run(run_id, RunStatus.to_string(RunStatus.RUNNING))
        self.id = run_id

    def log(self, rows: list[Row]) -> None:
        from mlflow.entities import Metric

        self._send_parameters()
        now = int(1000 * time.time())
        metrics = [
            Metric(_UNKNOWN.sub("_", name), value, now, step)
            for step, scalars in rows
            for name, value in scalars.items()
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self.id, metrics=metrics[start : start + _BATCH])

    def close(self) -> None:
        self._send_parameters()
        state = RunDir(self._path).read_status().get("state")
        self._client.set_terminated(self.id, _ENDS.get(str(state), "FINISHED"))

    def _send_parameters(self) -> None:
        while self._unsent:
            self._client.log_batch(self.id, params=self._unsent[:_MAX_PARAMETERS])
            del self._unsent[:_MAX_PARAMETERS]


SINK = Sink(lambda place, position: Tracker("mlflow", place, _Run), errors=ERRORS, may_lose_rows=True)
