"""All runs and groups of a folder as plain rows, each read again only when its files have changed.

A run counts only if nothing in its folder is a link that leads out of the runs folder: what is served is what
lies there. Numbers of versions tell a page which rows are new.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.dashboard.rows import read_first, read_part
from mission_gym.errors import MissionGymError, RunStateError
from mission_gym.report.documents import lineage_of
from mission_gym.store.groups import GroupDir
from mission_gym.store.rundir import RunDir

_FRESH_S = 1.0  # how old what is told may be
_NUM_SPARK = 24
_SPARKS_S = 0.2  # of each look, for sparklines that are not drawn yet
_REFUSED = "it holds a link that leads out of the runs folder, or a pipe"
_ALIVE = ("starting", "running")
_KEYS = (
    "state", "cause", "step", "total", "phase", "fps", "now_fps", "predicted_fps", "eta_s", "return_mean",
    "outcomes", "heartbeat", "created", "env_failures", "best_step",
)  # fmt: skip


class _Entry(NamedTuple):
    """A run as it was read, and when it is to be read again."""

    stamp: tuple[int, ...]
    row: dict[str, Any]
    version: int


class Index:
    """The runs of one folder; safe to use from several threads."""

    def __init__(self, runs_dir: Path) -> None:
        self.shown = str(runs_dir)  # as the user named it
        self.runs_dir = Path(os.path.realpath(runs_dir))
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._groups: list[dict[str, Any]] = []
        self._sparks: dict[str, tuple[tuple[int, int], list[float | None]]] = {}
        self._version = time.time_ns() // 1000  # above all that an earlier server told
        self._looked_at = -_FRESH_S
        self.problem = ""

    def find(self, name: str) -> RunDir | None:
        """The run of that name, None if there is none that may be shown."""
        path = self.runs_dir / name
        if not name or name in (".", "..") or "/" in name or os.sep in name or "\0" in name:
            return None
        run = RunDir(path)
        return run if is_contained(path) and run.exists else None

    def changes(self, since: int) -> dict[str, Any]:
        """Rows that changed behind version `since`, the names of all runs, and the groups."""
        with self._lock:
            self._look()
            return {
                "version": self._version,
                "rows": [entry.row for entry in self._entries.values() if entry.version > since],
                "names": list(self._entries),
                "groups": self._groups,
                "problem": self.problem,
            }

    def groups(self) -> list[dict[str, Any]]:
        """The groups as they are now."""
        with self._lock:
            self._look()
            return self._groups

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < _FRESH_S:
            return
        try:
            found = sorted(os.scandir(self.runs_dir), key=lambda entry: entry.name)
            self.problem = ""
        except FileNotFoundError:
            found, self.problem = [], f"{self.shown} is not there yet; a first run makes it"
        except OSError as error:
            found, self.problem = [], f"can't read {self.shown}: {error.strerror or error}"
        entries, groups = {}, []
        self._draw_until = now + _SPARKS_S
        for item in found:
            if not item.is_dir(follow_symlinks=False) or not _is_text(item.name):
                continue
            if (entry := self._read(item.name)) is not None:
                entries[item.name] = entry
            elif GroupDir(path := self.runs_dir / item.name).exists and is_contained(path):
                groups.append(_describe_group(path))
        if groups != self._groups or entries.keys() != self._entries.keys():
            self._version += 1
        self._entries, self._groups, self._looked_at = entries, groups, time.monotonic()
        self._sparks = {name: spark for name, spark in self._sparks.items() if name in entries}

    def _read(self, name: str) -> _Entry | None:
        """A run as it is now: as it was, where no file changed and its process can't have died."""
        folder = f"{self.runs_dir}{os.sep}{name}{os.sep}"  # thousands of paths a second, so they are text
        stamp = (*_stamp(f"{folder}status.json"), *_stamp(f"{folder}config.yaml"))
        if not any(stamp):
            return None
        size = _stamp(f"{folder}metrics.jsonl")
        known, kept = self._entries.get(name), self._sparks.get(name)
        is_drawn = kept is not None and kept[0] == size
        if known is not None and known.stamp == stamp and known.row["state"] not in _ALIVE and is_drawn:
            return known
        run = RunDir(Path(folder))
        row = _describe(run)
        if row["state"] != "refused":
            row["spark"] = self._draw(run, size)
        return self._enter(known, stamp, row)

    def _enter(self, known: _Entry | None, stamp: tuple[int, ...], row: dict[str, Any]) -> _Entry:
        if known is not None and known.row == row:
            return known._replace(stamp=stamp)
        self._version += 1
        return _Entry(stamp, row, self._version)

    def _draw(self, run: RunDir, size: tuple[int, int]) -> list[float | None] | None:
        """The return at even distances; None where that must wait, as many runs are new."""
        kept = self._sparks.get(run.name)
        if (kept is not None and kept[0] == size) or time.monotonic() > self._draw_until:
            return kept and kept[1]
        rows = read_part(run.metrics_jsonl, num_rows=_NUM_SPARK, whole_bytes=1 << 14).rows
        every = max(1, len(rows) // _NUM_SPARK)
        line = [row.get("rollout/ep_rew_mean") for row in rows[::every]]
        self._sparks[run.name] = (size, line)
        return line


def is_contained(path: Path) -> bool:
    """Whether a folder, what lies in it and its evaluations are no links that leave the folder above it, and
    no pipes, which would be waited for."""
    root = os.path.realpath(path.parent)
    try:
        for folder in (path, path / "eval"):
            if os.path.islink(folder):
                return False
            if os.path.isdir(folder):
                for entry in os.scandir(folder):
                    if entry.is_symlink() and not _is_below(os.path.realpath(entry.path), root):
                        return False
                    if not (entry.is_file() or entry.is_dir()) and os.path.exists(entry.path):
                        return False
    except OSError:
        return False
    return os.path.isdir(path)


def _is_below(path: str, root: str) -> bool:
    return os.path.commonpath((path, root)) == root


def _is_text(name: str) -> bool:
    """Whether a name can stand in an address: not every name of a folder is Unicode."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stamp(path: str) -> tuple[int, int]:
    """When a file changed, and its size; zeros where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return (status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else (0, 0)


def _describe(run: RunDir) -> dict[str, Any]:
    """The row of a run; one that can't be read says why."""
    row: dict[str, Any] = dict.fromkeys(_KEYS) | {"name": run.name}
    row |= {"env": None, "parent": None, "main": None, "spark": None}
    if not is_contained(run.path):
        return row | {"state": "refused", "cause": _REFUSED}
    try:
        status, lineage = run.read_status(), lineage_of(run)
    except MissionGymError as error:
        return row | {"state": "damaged", "cause": str(error)}
    first = read_first(run.metrics_jsonl)
    row |= {key: status.get(key) for key in _KEYS}
    row |= {"env": _find_env(first.get("time/plan")), "main": main_outcome(first)}
    return row | {"parent": lineage.parent if lineage else None}


def main_outcome(first: Mapping[str, Any]) -> str | None:
    """The outcome that counts, by the first event of a run."""
    name = first.get("main_outcome")
    return name if isinstance(name, str) else None


def list_stages(first: Mapping[str, Any]) -> list[str]:
    """The names of the stages of a curriculum, by the first event of a run."""
    names = first.get("stages")
    return [str(name) for name in names] if isinstance(names, list) else []


def _find_env(plan: Any) -> str | None:
    """The environment that a plan names; None where the plan is none."""
    facts = plan.get("facts") if isinstance(plan, dict) else None
    for fact in facts if isinstance(facts, list) else ():
        if isinstance(fact, dict) and fact.get("name") == "environment":
            return str(fact.get("value"))
    return None


def _describe_group(folder: Path) -> dict[str, Any]:
    """A group with its runs by name; one that can't be read says why."""
    try:
        group = GroupDir(folder).read()
    except RunStateError as error:
        return {"name": folder.name, "kind": "damaged", "runs": [], "problem": str(error)}
    shown = group.model_dump(include={"kind", "iqm", "low", "high"})
    return {"name": folder.name, **shown, "runs": [Path(run).name for run in group.runs]}
