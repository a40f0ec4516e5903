"""What runs are compared by: the return of the last evaluation, and the curve of training."""

from __future__ import annotations

from typing import NamedTuple

from mission_gym.store.evals import SELECT, read_evals
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog


class CurvePoint(NamedTuple):
    """The mean return of the last episodes of training, at a step and a time of training."""

    step: float
    seconds: float
    ret: float


def read_last_return(run: RunDir) -> float | None:
    """The mean return of the run's last evaluation; None without one."""
    results = [each for each in read_evals(run) if each["suite"] == SELECT]
    last = max(results, key=lambda each: each["step"], default=None)
    return None if last is None else last.get("return_mean")


def read_curve(run: RunDir) -> list[CurvePoint]:
    """The curve in order of steps; rows without a finished episode are left out."""
    points = []
    for row in MetricsLog.stream(run.metrics_jsonl):
        values = (row.get("step"), row.get("time/time_elapsed"), row.get("rollout/ep_rew_mean"))
        if row.get("event") == "progress" and all(isinstance(each, int | float) for each in values):
            points.append(CurvePoint(*map(float, values)))  # type: ignore[arg-type]
    return points
