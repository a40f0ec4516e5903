"""The result of a group, as group.json has it: runs, and the interquartile mean of their last evaluations."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from mission_gym.config.plain_yaml import read_stored
from mission_gym.errors import MissionGymError, RunStateError
from mission_gym.intervals import compute_iqm, compute_iqm_interval
from mission_gym.store.groups import GroupDir, Job
from mission_gym.store.returns import read_last_return
from mission_gym.store.rundir import RunDir


def write_result(group: GroupDir, jobs: Iterable[Job]) -> None:
    """Write what became of a group whose jobs have ended; runs without an evaluation don't count."""
    jobs = list(jobs)
    env_ids = set()
    returns: dict[str, list[float]] = {}  # by variant: the strata
    best: tuple[float, str] | None = None
    for job in jobs:
        if job.run is not None and job.state == "done":
            last = None
            with suppress(RunStateError):
                last = read_last_return(RunDir(job.run))
            if last is not None:
                returns.setdefault(job.request.variant, []).append(last)
                env_ids.add(_read_env_id(RunDir(job.run)))
                best = max(best or (last, str(job.run)), (last, str(job.run)))
    variants = {name: _estimate([values]) | {"seeds": len(values)} for name, values in returns.items()}
    if len(env_ids) > 1 or group.read().kind == "sweep":
        # Returns of different environments, or of settings that were tried, are no sample of anything.
        best, pooled = None, _estimate([])
    else:
        pooled = _estimate(list(returns.values()))
    group.write(
        runs=[str(job.run) for job in jobs if job.run is not None],
        best_run=best and best[1],
        variants=variants,
        **pooled,
    )


def _read_env_id(run: RunDir) -> Any:
    with suppress(MissionGymError):
        return read_stored(run.config_yaml)["env.env_id"].value
    return None


def _estimate(strata: list[list[float]]) -> dict[str, Any]:
    """The interquartile mean, with bounds where there are seeds to resample."""
    pooled = [value for stratum in strata for value in stratum]
    if not pooled:
        return {"iqm": None, "low": None, "high": None}
    interval = compute_iqm_interval(strata)
    bounds = {"low": None, "high": None} if interval is None else {"low": interval.low, "high": interval.high}
    return {"iqm": compute_iqm(pooled)} | bounds
