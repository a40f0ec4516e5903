"""Evaluations of a run: one JSON file per step and suite, and the step they call the best."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from mission_gym.errors import RunStateError
from mission_gym.store.checkpoints import step_name
from mission_gym.store.files import disk_errors, read_json, write_json
from mission_gym.store.rundir import RunDir

SELECT = "select"  # the suite that chooses models


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
            result = read_json(path)
        except RunStateError:  # a damaged evaluation does not count; it must not cost the run
            continue
        if isinstance(result, dict) and {"step", "suite"} <= result.keys():
            found.append(result)
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
