"""Evaluations of a run: one JSON file per step and suite, and the step they call the best."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mission_gym.errors import RunStateError
from mission_gym.store.checked import Count, Record, Str, read_checked
from mission_gym.store.checkpoints import step_name
from mission_gym.store.files import TEMPORARY, disk_errors, write_json, write_synced
from mission_gym.store.rundir import RunDir

SELECT = "select"  # the suite that chooses models


class _Rate(Record):
    rate: float | None
    low: float | None
    high: float | None


class _Eval(Record):
    """What is read of an evaluation by name."""

    step: Count
    suite: str
    score: float | None = None
    episodes: Count | None = None
    return_mean: float | None = None
    return_low: float | None = None
    return_high: float | None = None
    length_mean: float | None = None
    outcomes: dict[Str, _Rate] | None = None


_EVAL = TypeAdapter(_Eval)


def make_room(run: RunDir) -> None:
    """See that an evaluation can be kept, before it is made: DiskError."""
    probe = run.eval / f"{TEMPORARY}{step_name(0)}-probe.json-{os.getpid()}"
    with disk_errors(run.eval):
        run.eval.mkdir(exist_ok=True)
        try:
            write_synced(probe, bytes(4096), durable=False)
        finally:
            probe.unlink(missing_ok=True)


def write_eval(run: RunDir, step: int, suite: str, result: dict[str, Any]) -> Path:
    """Write the result of one evaluation; the same step and suite again replaces it."""
    with disk_errors(run.eval):
        run.eval.mkdir(exist_ok=True)
    path = run.eval / f"{step_name(step)}-{suite}.json"
    write_json(path, {**result, "step": step, "suite": suite})
    return path


def read_evals(run: RunDir) -> list[dict[str, Any]]:
    """All evaluations that can be read, by step and suite, each with its `step` and `suite`."""
    found = []
    for path in sorted(run.eval.glob("step_*.json")):
        try:
            found.append(read_checked(path, _EVAL).model_dump(exclude_unset=True))
        except RunStateError:  # a damaged evaluation does not count; it must not cost the run
            continue
    return found


def find_best(run: RunDir, among: Container[int] | None = None) -> tuple[float, int] | None:
    """The highest `score` on the selection suite and its step, ties to the later; None without any."""
    ranked = [
        (result["score"], result["step"])
        for result in read_evals(run)
        if result["suite"] == SELECT
        and result.get("score") is not None
        and (among is None or result["step"] in among)
    ]
    return max(ranked, default=None)


def best_step(run: RunDir, among: Container[int] | None = None) -> int | None:
    """The step of that."""
    best = find_best(run, among)
    return best and best[1]
