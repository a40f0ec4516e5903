"""Deletions: checkpoints that retention drops, and whole runs that the user names.

Planning only reads, so that a command can show the plan first; deleting takes each run's lock. A run is
removed only if we made it, and in it only files that we write, by name. Symbolic links are never followed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.config.schema import CheckpointSection
from mission_gym.errors import RunStateError, UsageError
from mission_gym.run.config import read_config
from mission_gym.store import checkpoints
from mission_gym.store.checkpoints import CheckpointInfo, delete_checkpoint, list_checkpoints, plan_retention
from mission_gym.store.evals import best_step
from mission_gym.store.files import disk_errors, read_json
from mission_gym.store.resolve import RunRef, find_name
from mission_gym.store.rundir import EVAL_NAMES, OWN_NAMES, RunDir, read_pins
from mission_gym.store.sinks import list_owned

NUM_CONFIRMED = 3  # checkpoints that are evaluated again when a run ends
_STATUS = {"state", "created", "pid", "heartbeat"}
_PATTERNS = (
    *(f"checkpoints/*step_*/{name}" for name in checkpoints.FILES),
    f"eval/{EVAL_NAMES}",
    *OWN_NAMES,  # the status and the lock come last, so that a removal that was killed can be repeated
)


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


def check_ours(run: RunDir) -> None:
    """Raise RunStateError if the folder is not a run that we made."""
    what = ""
    if run.path.is_symlink() or not run.path.is_dir():
        what = "a link" if run.path.is_symlink() else "not a folder"
    elif not _is_file(run.path / ".lock"):
        what = "not a run of ours: it has no .lock"
    else:
        with suppress(RunStateError):
            status = read_json(run.status_json) if _is_file(run.status_json) else None
            if isinstance(status, dict) and status.keys() >= _STATUS:
                return
        what = "not a run of ours: it has no status.json with a state, a pid and times"
    raise RunStateError(f"{run.path} is {what}; nothing in it is deleted")


def find_own(run: RunDir, of_sinks: Iterable[str]) -> list[Path]:
    """List the files of a run that we wrote; of_sinks: globs of the files and links that sinks write."""
    root = Path(os.path.realpath(run.path))
    files = [path for pattern in of_sinks for path in root.glob(pattern)]
    links = [path for path in files if path.is_symlink() and _is_direct(path.parent)]
    with suppress(RunStateError, AttributeError, TypeError):  # without the list, the content of env/ stays
        for name in read_json(run.env_files_json).values():
            if name == Path(name).name:
                copy = root / "env" / name
                files += [copy, *copy.rglob("*")]
    files += [path for pattern in _PATTERNS for path in root.glob(pattern)]
    return [*links, *(path for path in dict.fromkeys(files) if path.is_file() and _is_direct(path))]


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_direct(path: Path) -> bool:
    """Return whether a path leads through no symbolic link."""
    return os.path.realpath(path) == str(path)


def remove_run(run: RunDir, of_sinks: Collection[str]) -> None:
    """Delete our files, then our folders that are empty; the caller holds the lock. DiskError."""
    check_ours(run)
    with disk_errors(run.path):
        for path in find_own(run, of_sinks):
            path.unlink()
    folders = {"env", *(pattern.partition("/")[0] for pattern in (*of_sinks, *_PATTERNS) if "/" in pattern)}
    inside = [path for path in run.path.rglob("*") if path.relative_to(run.path).parts[0] in folders]
    for folder in [*sorted(inside, reverse=True), run.path]:
        with suppress(OSError):  # it is a file, a link, or not empty
            folder.rmdir()
