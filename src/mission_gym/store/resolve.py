"""From user input to a run and a checkpoint: `RUN`, `RUN@STEP`, `RUN@best`, `RUN@last`.

RUN is a path of a run or of a checkpoint in one, a run name with or without its time stamp, a unique prefix,
or `latest`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

from mission_gym.errors import RunStateError, nearest
from mission_gym.store.checkpoints import CheckpointInfo, list_checkpoints, step_of
from mission_gym.store.evals import best_step
from mission_gym.store.rundir import RunDir

Step = int | Literal["best", "last"] | None
STAMP = re.compile(r"-\d{8}-\d{6}(-\d+)?$")
_NUM_LISTED = 12


class RunRef(NamedTuple):
    """A run, its checkpoint (None: the best, or the last without evaluations), and a note to print."""

    run: RunDir
    step: Step
    note: str = ""


def list_runs(runs_dir: Path) -> list[RunDir]:
    """List all runs in a folder, the newest last."""
    try:
        runs = [RunDir(path) for path in runs_dir.iterdir()] if os.path.isdir(runs_dir) else []
    except OSError as error:
        raise RunStateError(f"can't read {runs_dir}: {error.strerror or error}") from error
    # Runs of the same moment differ by a numeric suffix: the longer name, then the greater, is later.
    return sorted((run for run in runs if run.exists), key=lambda run: (run.created, len(run.name), run.name))


def find_run(text: str, runs_dir: Path) -> RunRef:
    """Resolve user input; RunStateError names the candidates or the nearest name."""
    if by_path := _find_path(text):  # first as it is: a path may contain an "@"
        return by_path
    name, at, step_text = text.rpartition("@")
    if not at:
        return find_name(text, runs_dir)
    step = _parse_step(step_text, text)
    found = _find_path(name) or find_name(name, runs_dir)
    if found.step is not None:
        raise RunStateError(f"{text!r} names two checkpoints, by path and by @{step}; drop one of them")
    return found._replace(step=step)


def checkpoint_for(ref: RunRef) -> CheckpointInfo:
    """Return the checkpoint of a reference; without a step, the best if there are evaluations, else the
    last."""
    infos = {info.step: info for info in list_checkpoints(ref.run.checkpoints)}
    if not infos:
        raise RunStateError(f"run {ref.run.name} has no checkpoint yet [{ref.run.checkpoints}]")
    step = ref.step
    if step is None or step == "best":
        best = best_step(ref.run, among=infos)
        if best is None and step == "best":
            raise RunStateError(f"run {ref.run.name} has no evaluated checkpoint to call the best; use @last")
        step = "last" if best is None else best
    if step == "last":
        step = max(infos)
    if step not in infos:
        known = _shorten([str(step) for step in infos])
        raise RunStateError(f"run {ref.run.name} has no checkpoint at step {step}; it has {known}")
    return infos[step]


def _find_path(text: str) -> RunRef | None:
    path = Path(os.path.abspath(text))
    if os.path.isfile(path):
        path = path.parent
    if RunDir(path).exists:
        return RunRef(RunDir(path), None)
    run, step = RunDir(path.parent.parent), step_of(path)
    if step is not None and os.path.isdir(path) and path.parent == run.checkpoints and run.exists:
        return RunRef(run, step)
    return None


def find_namesake(name: str, runs_dir: Path) -> RunDir | None:
    """Return the newest run whose name without its time stamp is `name`; None without one."""
    return next((run for run in reversed(list_runs(runs_dir)) if STAMP.sub("", run.name) == name), None)


def find_name(name: str, runs_dir: Path) -> RunRef:
    """Find a run by its name, its name without the time stamp, or a unique prefix."""
    runs = {run.name: run for run in list_runs(runs_dir)}
    remedy = "`mission-gym runs list` shows them all" if runs else "start one with `mission-gym train`"
    found, note = match_name(name, list(runs), "run", f" in {runs_dir}", remedy)
    return RunRef(runs[found], None, note)


def match_name(name: str, known: list[str], what: str, where: str, remedy: str) -> tuple[str, str]:
    """Return the `known` name that the user means, and a note to print; RunStateError if none fits.

    It is the exact name, the newest with this name and a time stamp, the only one with this prefix, or for
    `latest` the last. known: the newest last.
    """
    several = f"{what.replace(' or ', 's or ')}s"
    if not known:
        raise RunStateError(f"no {what} {name!r}: there are no {several}{where}; {remedy}")
    if name == "latest":
        return known[-1], ""
    if name in known:
        return name, ""
    namesakes = [each for each in known if STAMP.sub("", each) == name]
    if namesakes:
        note = f"{len(namesakes)} {several} are named {name!r}; taking the newest, {namesakes[-1]}"
        return namesakes[-1], note if len(namesakes) > 1 else ""
    candidates = [each for each in known if name and each.startswith(name)]
    if len(candidates) > 1:
        listed = _shorten(candidates)
        raise RunStateError(f"{name!r} fits {len(candidates)} {several}: {listed}; type more of it")
    if candidates:
        return candidates[0], ""
    hint = nearest(name, ["latest", *known, *(STAMP.sub("", each) for each in known)])
    raise RunStateError(f"no {what} {name!r}{where}{hint}; {remedy}")


def _parse_step(step_text: str, text: str) -> Step:
    match step_text:
        case "best" | "last":
            return step_text
    if step_text.isascii() and step_text.isdigit():
        return int(step_text)
    raise RunStateError(f"{step_text!r} in {text!r} is not a checkpoint; use @STEP, @best or @last")


def _shorten(names: list[str]) -> str:
    left_out = len(names) - _NUM_LISTED
    return ", ".join(names[-_NUM_LISTED:]) + (f" and {left_out} earlier" if left_out > 0 else "")
