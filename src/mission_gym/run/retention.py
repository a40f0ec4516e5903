"""Deletions: checkpoints that retention drops, and whole runs that the user names.

Planning only reads, so that a command can show the plan first; deleting takes each run's lock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.config.schema import CheckpointSection
from mission_gym.errors import RunStateError, UsageError
from mission_gym.run.config import read_config
from mission_gym.store.checkpoints import CheckpointInfo, delete_checkpoint, list_checkpoints, plan_retention
from mission_gym.store.evals import best_step
from mission_gym.store.lineage import read_pins
from mission_gym.store.removal import check_ours, find_own, remove_run
from mission_gym.store.resolve import RunRef, find_name
from mission_gym.store.rundir import RunDir
from mission_gym.store.sinks import list_owned

NUM_CONFIRMED = 3  # checkpoints that are evaluated again when a run ends


class Deletion(NamedTuple):
    """A checkpoint to delete, or with `step` None the whole run."""

    run: RunDir
    path: Path
    step: int | None
    size_bytes: int
    children: tuple[str, ...] = ()  # runs that branched from it
    num_foreign: int = 0  # files in it that we did not write, and keep

    def document(self) -> dict[str, Any]:
        """The item of `runs clean --json`."""
        own = {"run": self.run.name, "path": str(self.path), "children": list(self.children)}
        return self._asdict() | own


def find_expired_checkpoints(
    run: RunDir, settings: CheckpointSection, *, best: int | None, finished: bool
) -> list[CheckpointInfo]:
    """The checkpoints that retention drops; never `best`, unless keep_best is 0. Until the run is finished,
    those that will be evaluated again are kept, too."""
    infos = {info.step: info for info in list_checkpoints(run.checkpoints)}
    keep_best = settings.keep_best
    if keep_best and not finished:
        keep_best = max(keep_best, NUM_CONFIRMED)
    steps = plan_retention(
        list(infos.values()),
        keep_last=settings.keep_last,
        keep_best=keep_best,
        budget_bytes=settings.checkpoint_budget_mb * 1_000_000,
        pinned={*read_pins(run), *([best] if keep_best and best is not None else [])},
    )
    return [infos[step] for step in steps]


def plan_cleaning(runs: Sequence[RunDir]) -> list[Deletion]:
    """The checkpoints of these runs that retention would drop now; active runs delete their own."""
    deletions = []
    for run in runs:
        try:
            check_ours(run)
        except RunStateError:
            continue
        state = run.read_status().get("state")
        is_active = state in ("starting", "running")
        if run.config_yaml.exists() and not is_active and not run.checkpoints.is_symlink():
            section = read_config(run.config_yaml, "checkpoints").config.checkpoints
            infos = find_expired_checkpoints(run, section, best=best_step(run), finished=state == "done")
            deletions += [Deletion(run, info.path, info.step, info.size_bytes) for info in infos]
    return deletions


def find_removable(text: str, runs_dir: Path) -> RunRef:
    """The run to remove: by its name or path in the runs folder, or by a full path."""
    if "/" not in text and os.sep not in text:
        if "@" in text:
            raise UsageError(f"{text!r} names a checkpoint; only whole runs are removed, by name [RUN]")
        return find_name(text, runs_dir)
    run = RunDir(Path(text))
    if not Path(text).is_absolute() and run.path.parent.resolve() != runs_dir.resolve():
        raise UsageError(f"{text!r} is not in the runs folder {runs_dir}; give its full path [RUN]")
    return RunRef(run, None)


def plan_removal(runs: Sequence[RunDir]) -> list[Deletion]:
    """Whole runs, each with the runs that branched from it; RunStateError for a folder that is not a run."""
    deletions, owned = [], list_owned()
    for run in runs:
        check_ours(run)
        own = find_own(run, owned)
        size = sum(path.lstat().st_size for path in own)
        others = sum(not path.is_dir() or path.is_symlink() for path in run.path.rglob("*")) - len(own)
        children = sorted({child for names in read_pins(run).values() for child in names})
        deletions.append(Deletion(run, run.path, None, size, tuple(children), others))
    return deletions


def clean(deletions: Sequence[Deletion]) -> None:
    """Delete these items; RunStateError if another process uses a run."""
    for item in deletions:
        with item.run.lock():
            if item.step is None:
                remove_run(item.run, list_owned())
            else:
                delete_checkpoint(item.path)
