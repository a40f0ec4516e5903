"""Evaluations of a run: one JSON file per step and suite, the best step, and training curves.

A confirmation is also one file: the best checkpoints, evaluated again when the run had reached that step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from mission_gym.errors import RunStateError
from mission_gym.store.checkpoints import step_name
from mission_gym.store.files import (
    TEMPORARY,
    Count,
    Record,
    Str,
    disk_errors,
    read_validated,
    write_json,
    write_synced,
)
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog

SELECT = "select"  # the suite that selects models
CONFIRM = "confirm"  # the candidates that were selected, evaluated again
GOAL = "goal"  # further seeds of the selection suite, which decide whether the goal is reached
RETEST = "retest"  # seeds of the report suite that nothing else uses: the final policy of a sweep's re-test


class _OutcomeRate(Record):
    rate: float | None
    low: float | None
    high: float | None


class _Baseline(Record):
    return_mean: float | None = None
    outcomes: dict[Str, _OutcomeRate] | None = None


class _Result(_Baseline):
    """The evaluation of one checkpoint."""

    step: Count
    score: float | None = None
    episodes: Count | None = None
    return_low: float | None = None
    return_high: float | None = None
    length_mean: float | None = None


class _Eval(_Result):
    """The file of an evaluation or a confirmation."""

    suite: str
    returns: list[float | None] | None = None
    candidates: list[_Result] | None = None


class CurvePoint(NamedTuple):
    """The mean return of recent training episodes at a step and a time of training."""

    step: float
    seconds: float
    ret: float


_EVAL = TypeAdapter(_Eval)
_BASELINES = TypeAdapter(dict[Str, _Baseline])


def check_writable(run: RunDir) -> None:
    """Check that an evaluation can be stored, before it starts; DiskError."""
    run.check_plain()
    probe = run.eval / f"{TEMPORARY}{step_name(0)}-probe.json-{os.getpid()}"
    with disk_errors(run.eval):
        run.eval.mkdir(exist_ok=True)
        try:
            write_synced(probe, bytes(4096), durable=False)
        finally:
            probe.unlink(missing_ok=True)


def write_eval(run: RunDir, step: int, suite: str, result: dict[str, Any]) -> Path:
    """Write the result of one evaluation; it replaces one of the same step and suite."""
    run.check_plain()
    with disk_errors(run.eval):
        run.eval.mkdir(exist_ok=True)
    path = run.eval / f"{step_name(step)}-{suite}.json"
    write_json(path, {**result, "step": step, "suite": suite})
    return path


def read_evals(run: RunDir, warn: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """Read all evaluations, sorted by step and suite, each with its `step` and `suite`.

    warn: is called for each that can't be read.
    """
    found = []
    for path in sorted(run.eval.glob("step_*.json")):
        try:
            found.append(read_validated(path, _EVAL).model_dump(exclude_unset=True))
        except RunStateError as error:  # it must not cost the run
            warn(f"an evaluation is ignored: {error}")
    return found


def write_baselines(run: RunDir, results: dict[str, dict[str, Any]]) -> None:
    """Write the results of baselines on the report suite, by name, for charts to compare with."""
    write_json(run.baselines_json, results)


def read_baselines(run: RunDir) -> dict[str, dict[str, Any]]:
    """Read the results of baselines; empty if there are none or they can't be read."""
    try:
        baselines = read_validated(run.baselines_json, _BASELINES)
    except RunStateError:
        return {}
    return {name: result.model_dump() for name, result in baselines.items()}


def rank_best(
    run: RunDir, among: Container[int] | None = None, warn: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Return results with a `score`, the highest first, ties to the later step.

    They are those of the selection suite. After a confirmation they are its candidates, each with `confirmed`
    (the number of additional episodes), and later results of the selection suite. among: the steps to
    consider. warn: see `read_evals`.
    """

    def rank(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        known = (each for each in results if among is None or each["step"] in among)
        scored = [each for each in known if each.get("score") is not None]
        return sorted(scored, key=lambda each: (each["score"], each["step"]), reverse=True)

    results = read_evals(run, warn)
    selected = [result for result in results if result["suite"] == SELECT]
    for confirmation in [result for result in reversed(results) if result["suite"] == CONFIRM]:
        added = {"confirmed": confirmation.get("episodes")}
        confirmed = [each | added for each in confirmation.get("candidates") or ()]
        if rank(confirmed):
            return rank([*confirmed, *(each for each in selected if each["step"] > confirmation["step"])])
    return rank(selected)


def find_best(run: RunDir, among: Container[int] | None = None) -> tuple[float, int] | None:
    """Return the highest score and its step; None without a score."""
    ranked = rank_best(run, among)
    return (ranked[0]["score"], ranked[0]["step"]) if ranked else None


def best_step(run: RunDir, among: Container[int] | None = None) -> int | None:
    """Return the step of the highest score; None without a score."""
    best = find_best(run, among)
    return best and best[1]


def read_last(run: RunDir, suite: str) -> dict[str, Any] | None:
    """Return the last evaluation on a suite; None without one."""
    results = [each for each in read_evals(run) if each["suite"] == suite]
    return max(results, key=lambda each: each["step"], default=None)


def read_last_return(run: RunDir) -> float | None:
    """Return the mean return of the re-test, else of the last evaluation on the selection suite; None without
    one."""
    last = read_last(run, RETEST) or read_last(run, SELECT)
    return None if last is None else last.get("return_mean")


def read_curve(run: RunDir) -> list[CurvePoint]:
    """Return the training curve by step, without rows before the first finished episode."""
    points = []
    for row in MetricsLog.stream(run.metrics_jsonl):
        values = (row.get("step"), row.get("time/time_elapsed"), row.get("rollout/ep_rew_mean"))
        if row.get("event") == "progress" and all(isinstance(each, int | float) for each in values):
            points.append(CurvePoint(*map(float, values)))  # type: ignore[arg-type]
    return points
