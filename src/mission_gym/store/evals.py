"""Evaluations of a run: one JSON file per step and suite, and the step they call the best.

A confirmation is one file too: the best checkpoints, played again when the run had come to that step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mission_gym.errors import RunStateError
from mission_gym.store.checked import Count, Record, Str, read_checked
from mission_gym.store.checkpoints import step_name
from mission_gym.store.files import TEMPORARY, disk_errors, write_json, write_synced
from mission_gym.store.rundir import RunDir

SELECT = "select"  # the suite that chooses models
CONFIRM = "confirm"  # its candidates were chosen by that and played again


class _Rate(Record):
    rate: float | None
    low: float | None
    high: float | None


class _Result(Record):
    """What is read of one checkpoint's result by name."""

    step: Count
    score: float | None = None
    episodes: Count | None = None
    return_mean: float | None = None
    return_low: float | None = None
    return_high: float | None = None
    length_mean: float | None = None
    outcomes: dict[Str, _Rate] | None = None


class _Eval(_Result):
    """What is read of an evaluation, and of a confirmation."""

    suite: str
    returns: list[float | None] | None = None
    candidates: list[_Result] | None = None


class _Played(Record):
    """What is read of a baseline's result."""

    return_mean: float | None = None
    outcomes: dict[Str, _Rate] | None = None


_EVAL = TypeAdapter(_Eval)
_BASELINES = TypeAdapter(dict[Str, _Played])


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


def read_evals(run: RunDir, tell: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """All evaluations that can be read, by step and suite, each with its `step` and `suite`.

    tell: of those that can't be read.
    """
    found = []
    for path in sorted(run.eval.glob("step_*.json")):
        try:
            found.append(read_checked(path, _EVAL).model_dump(exclude_unset=True))
        except RunStateError as error:  # it must not cost the run
            tell(f"an evaluation does not count: {error}")
    return found


def write_baselines(run: RunDir, results: dict[str, dict[str, Any]]) -> None:
    """Keep what baselines played on the report suite, by name, for charts to show beside the run."""
    write_json(run.baselines_json, results)


def read_baselines(run: RunDir) -> dict[str, dict[str, Any]]:
    """The same, none where they were not played or can't be read."""
    try:
        played = read_checked(run.baselines_json, _BASELINES)
    except RunStateError:
        return {}
    return {name: result.model_dump() for name, result in played.items()}


def rank_best(
    run: RunDir, among: Container[int] | None = None, tell: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Results with a `score`, the highest first, ties to the later: those on the selection suite, or behind a
    confirmation its candidates, which say on how many more episodes they were `confirmed`, and what came
    after it. among: steps that count. tell: see `read_evals`."""

    def rank(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        known = (each for each in results if among is None or each["step"] in among)
        scored = [each for each in known if each.get("score") is not None]
        return sorted(scored, key=lambda each: (each["score"], each["step"]), reverse=True)

    results = read_evals(run, tell)
    selected = [result for result in results if result["suite"] == SELECT]
    for confirmation in [result for result in reversed(results) if result["suite"] == CONFIRM]:
        added = {"confirmed": confirmation.get("episodes")}
        confirmed = [each | added for each in confirmation.get("candidates") or ()]
        if rank(confirmed):
            return rank([*confirmed, *(each for each in selected if each["step"] > confirmation["step"])])
    return rank(selected)


def find_best(run: RunDir, among: Container[int] | None = None) -> tuple[float, int] | None:
    """The highest score and its step; None without any."""
    ranked = rank_best(run, among)
    return (ranked[0]["score"], ranked[0]["step"]) if ranked else None


def best_step(run: RunDir, among: Container[int] | None = None) -> int | None:
    """The step of that."""
    best = find_best(run, among)
    return best and best[1]
