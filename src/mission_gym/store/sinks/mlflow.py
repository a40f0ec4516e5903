"""MLflow, with the store that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import os
import re
import time

from mission_gym.store.rundir import RunDir
from mission_gym.store.sinks.tracker import PROJECT, RunInfo, StepRow, make_tracker_sink

_BATCH = 1000  # most metrics per request of its API
_MAX_PARAMETERS = 100
_ENDS = {"failed": "FAILED", "stopped": "KILLED"}  # our states -> MLflow's
_UNKNOWN = re.compile(r"[^\w\-. :/]")  # characters that are not allowed in a name


class _MlflowRun:
    def __init__(self, info: RunInfo, run_id: str | None) -> None:
        from mlflow.entities import Param, RunStatus
        from mlflow.tracking import MlflowClient

        self._client, self._path = MlflowClient(), info.path
        # Parameters are sent after the id is stored: a failure here would create a new run at each attempt.
        self._unsent: list[Param] = []
        if run_id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else self._client.create_experiment(name)
            tags = {"tags": {"group": info.group}} if info.group else {}
            run_id = self._client.create_run(experiment, run_name=info.name, **tags).info.run_id
            self._unsent = [Param(path, str(value)[:500]) for path, value in info.config.items()]
        else:
            self._client.update_run(run_id, RunStatus.to_string(RunStatus.RUNNING))
        self.id = run_id

    def log(self, rows: list[StepRow]) -> None:
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


SINK = make_tracker_sink("mlflow", _MlflowRun)
