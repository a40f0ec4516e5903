"""What may be deleted: checkpoints that retention drops, and whole runs that the user names.

Planning only reads, so that it can be shown first; deleting takes each run's lock.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.config.schema import CheckpointSection
from mission_gym.run.config import read_config
from mission_gym.store.checkpoints import CheckpointInfo, delete_checkpoint, list_checkpoints
from mission_gym.store.files import disk_errors
from mission_gym.store.lineage import read_pins
from mission_gym.store.retention import plan_retention
from mission_gym.store.rundir import RunDir


class Doomed(NamedTuple):
    """Something that cleaning would delete: a checkpoint, or with `step` None the whole run."""

    run: RunDir
    path: Path
    step: int | None
    size_bytes: int
    children: tuple[str, ...] = ()  # runs that branched from it

    def document(self) -> dict[str, Any]:
        """The item as `runs clean --json` has it."""
        return self._asdict() | {
            "run": self.run.name,
            "path": str(self.path),
            "children": list(self.children),
        }


def find_doomed_checkpoints(run: RunDir, settings: CheckpointSection) -> list[CheckpointInfo]:
    """The checkpoints that retention drops under these settings."""
    infos = {info.step: info for info in list_checkpoints(run.checkpoints)}
    steps = plan_retention(
        list(infos.values()),
        keep_last=settings.keep_last,
        keep_best=settings.keep_best,
        budget_bytes=settings.checkpoint_budget_mb * 1_000_000,
        pinned=read_pins(run).keys(),
    )
    return [infos[step] for step in steps]


def plan_cleaning(runs: Sequence[RunDir]) -> list[Doomed]:
    """The checkpoints of these runs that retention would drop now; runs at work clean up by themselves."""
    doomed = []
    for run in runs:
        if run.config_yaml.exists() and run.read_status().get("state") not in ("starting", "running"):
            infos = find_doomed_checkpoints(
                run, read_config(run.config_yaml, "checkpoints").config.checkpoints
            )
            doomed += [Doomed(run, info.path, info.step, info.size_bytes) for info in infos]
    return doomed


def plan_removal(runs: Sequence[RunDir]) -> list[Doomed]:
    """Whole runs, each with the runs that branched from it."""
    doomed = []
    for run in runs:
        size = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
        children = sorted({child for names in read_pins(run).values() for child in names})
        doomed.append(Doomed(run, run.path, None, size, tuple(children)))
    return doomed


def clean(doomed: Sequence[Doomed]) -> None:
    """Delete what was planned; RunStateError if another process is at work on a run."""
    for item in doomed:
        with item.run.lock():
            if item.step is not None:
                delete_checkpoint(item.path)
            else:
                with disk_errors(item.path):
                    shutil.rmtree(item.path)
