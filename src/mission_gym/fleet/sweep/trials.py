"""A setting as jobs of the group, one for each seed, and what their runs came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from mission_gym.errors import RunStateError
from mission_gym.fleet.drafts import Draft, name_member
from mission_gym.fleet.requests import Needs, make_requests
from mission_gym.store.evals import SELECT, read_evals
from mission_gym.store.groups import GroupDir, Job, JobRequest
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import Question, Values
from mission_gym.store.tables import MetricsLog

_OF_A_RUN = ("seed", "run_name", "runs_dir")  # each run has its own


class RunResult(NamedTuple):
    """What a run came to."""

    score: float  # the lower bound of its last evaluation
    value: float  # the mean of the same
    seconds: float  # of training


class Ending(NamedTuple):
    """What the runs of a trial came to."""

    results: Sequence[RunResult]
    causes: Sequence[str]  # of those that came to nothing


def list_jobs(jobs: Mapping[str, Job], variant: str) -> list[Job]:
    """The jobs of a variant."""
    return [job for job in jobs.values() if job.request.variant == variant]


def request_jobs(
    group: GroupDir, question: Question, needs: Needs, variant: str, given: Values, seeds: Iterable[int]
) -> list[JobRequest]:
    """The jobs of a setting, one for each seed."""
    values = {name: value for name, value in question.values.items() if name not in _OF_A_RUN} | given
    drafts = [Draft(name_member(variant, seed), variant, values, seed=seed) for seed in seeds]
    requests = make_requests(
        group.read().name, drafts, str(group.path.parent), {each.name: needs for each in drafts}
    )
    return [request.model_copy(update={"folder": question.folder}) for request in requests]


def measure_jobs_s(group: GroupDir) -> list[float]:
    """How long the processes of the jobs that are done took."""
    begun: dict[str, float] = {}
    found = []
    for row in group.journal.read():
        if row["event"] == "started":
            begun[row["name"]] = row["time"]
        elif row["event"] == "ended" and row["state"] == "done":
            found.append(max(0.0, row["time"] - begun[row["name"]]))
    return found


def gather(jobs: Iterable[Job], measure: str) -> Ending:
    """What jobs that have ended came to."""
    results, causes = [], []
    for job in jobs:
        found = None
        if job.state == "done" and job.run is not None:
            found = read_result(RunDir(job.run), measure)
        if found is not None:
            results.append(found)
        else:
            why = job.cause if job.state != "done" else "its last evaluation is missing or not finite"
            causes.append(f"seed {job.request.seed} {job.state}: {why}")
    return Ending(results, causes)


def read_result(run: RunDir, measure: str) -> RunResult | None:
    """What a run came to by its last evaluation; None without one, or if that is not finite."""
    try:
        evals = _list_evals(run)
    except RunStateError:
        return None
    if not evals:
        return None
    last = evals[-1]
    value = last.get("return_mean")
    if measure != "return":
        value = ((last.get("outcomes") or {}).get(measure) or {}).get("rate")
    if value is None or last.get("score") is None:
        return None
    return RunResult(last["score"], value, _read_seconds(run))


def read_curve(jobs: Sequence[Job]) -> list[float]:
    """The lower bounds of a trial's evaluations, in the mean over its runs, as far as all of them are."""
    runs = [RunDir(job.run) for job in jobs if job.run is not None]
    if len(runs) < len(jobs):
        return []
    scores = [[each.get("score") for each in _list_evals(run)] for run in runs]
    rows = list(zip(*scores, strict=False))
    return [mean(row) for row in rows if None not in row]


def _list_evals(run: RunDir) -> list[dict[str, Any]]:
    """The evaluations of the selection suite in order of steps."""
    return sorted(
        (each for each in read_evals(run) if each["suite"] == SELECT), key=lambda each: each["step"]
    )


def _read_seconds(run: RunDir) -> float:
    rows = MetricsLog.stream(run.metrics_jsonl)
    return float(max((row.get("time/time_elapsed") or 0.0 for row in rows), default=0.0))
