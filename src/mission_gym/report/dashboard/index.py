"""All runs and groups of a folder as plain rows, each read again only when its files have changed.

A run counts only if nothing in its folder is a link that leads out of the runs folder: what is served is what
lies there. Numbers of versions tell a page which rows are new.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.errors import MissionGymError
from mission_gym.report.dashboard.contained import REFUSED, is_contained
from mission_gym.report.dashboard.groups import Groups
from mission_gym.report.dashboard.rows import read_first, read_part
from mission_gym.report.dashboard.stamps import Stamp, stamp
from mission_gym.report.documents import lineage_of
from mission_gym.store.groups import GroupDir
from mission_gym.store.rundir import RunDir, View, list_fields

_FRESH_S = 0.5  # how old what is told may be
_NUM_SPARK = 24
_SPARKS_S = 0.2  # of each look, for sparklines that are not drawn yet
_NUM_CLOSE = 200  # runs that have ended and are looked at closely in one look; the others in the next ones
_SETTLED_NS = 2 * 10**9  # clocks of file systems are coarse: what changed just now may change unseen
_LIST_TURNS = 10  # looks after which folders are listed again in any case
_ALIVE = ("starting", "running")
_NUMBERS, _TEXTS = list_fields(View.NUMBER), list_fields(View.TEXT)


class _Entry(NamedTuple):
    """A run as it was read, and what it was read from."""

    stamps: tuple[
        Stamp, ...
    ]  # of the folder, which changes when a file comes, goes or is replaced, and files
    stream: Stamp  # that its sparkline is to show
    drawn: Stamp | None  # the one that it does show
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
        self._read_groups = Groups()
        self._version = time.time_ns() // 1000  # above all that an earlier server told
        self._names_version = self._groups_version = self._version  # of their last change
        self._folders: list[str] = []
        self._listed_ns, self._looked_at, self._turn = 0, -_FRESH_S, 0
        self.problem = ""

    def find(self, name: str) -> RunDir | None:
        """The run of that name, None if there is none that may be shown."""
        if not name or name in (".", "..") or "/" in name or os.sep in name or "\0" in name:
            return None
        path = self.runs_dir / name
        run = RunDir(path)
        return run if run.exists and is_contained(path, "eval", "checkpoints") else None

    def changes(self, since: int) -> dict[str, Any]:
        """Rows that changed behind version `since`; the names of all runs and the groups, None where those
        are as they were."""
        with self._lock:
            self._look()
            return {
                "version": self._version,
                "rows": [entry.row for entry in self._entries.values() if entry.version > since],
                "names": list(self._entries) if self._names_version > since else None,
                "groups": self._groups if self._groups_version > since else None,
                "problem": self.problem,
            }

    def _look(self) -> None:
        """Read what may have changed: runs at work each time, those that have ended in turns."""
        if time.monotonic() - self._looked_at < _FRESH_S:
            return
        self._turn += 1
        self._list_folders()
        num_turns = -(-len(self._folders) // _NUM_CLOSE)
        before, others = set(self._entries), []
        for number, name in enumerate(self._folders):
            known = self._entries.get(name)
            if known is not None and (number + self._turn) % num_turns and known.row["state"] not in _ALIVE:
                continue
            entry = self._read(name, known)
            if entry is not None:
                self._entries[name] = entry
            else:
                self._entries.pop(name, None)
                others.append(self.runs_dir / name)
        gone = before - set(self._folders)
        for name in gone:
            del self._entries[name]
        if before != set(self._entries):
            self._version += 1
            self._names_version = self._version
        self._draw_some()
        self._look_at_groups(others)
        self._looked_at = time.monotonic()

    def _list_folders(self) -> None:
        """The names of all folders, listed anew where one may have come or gone."""
        changed_ns = stamp(self.runs_dir).mtime_ns
        is_old = time.time_ns() - changed_ns > _SETTLED_NS
        if changed_ns and changed_ns == self._listed_ns and is_old and self._turn % _LIST_TURNS:
            return
        self._listed_ns, self._folders, self.problem = changed_ns, [], ""
        try:
            with os.scandir(self.runs_dir) as scan:
                found = [item.name for item in scan if item.is_dir(follow_symlinks=False)]
            self._folders = sorted(filter(_is_text, found))
        except FileNotFoundError:
            self.problem = f"{self.shown} is not there yet; a first run makes it"
        except OSError as error:
            self.problem = f"can't read {self.shown}: {error.strerror or error}"

    def _read(self, name: str, known: _Entry | None) -> _Entry | None:
        """A run as it is now; None for another folder."""
        folder = f"{self.runs_dir}{os.sep}{name}{os.sep}"  # many paths a second, so they are text
        status = stamp(f"{folder}status.json")
        if not any(status) and not any(stamp(f"{folder}config.yaml")):
            return None
        stamps, stream = (status, stamp(folder)), stamp(f"{folder}metrics.jsonl")
        is_same = known is not None and known.stamps == stamps and any(known.stream) == any(stream)
        if known is not None and is_same and known.row["state"] not in _ALIVE:
            return known._replace(stream=stream)
        row = _describe(RunDir(Path(folder)))
        if known is None:
            self._version += 1
            return _Entry(stamps, stream, None, row, self._version)
        if row["state"] != "refused":
            row["spark"] = known.row["spark"]
        self._version += row != known.row
        version = known.version if row == known.row else self._version
        return _Entry(stamps, stream, known.drawn, row, version)

    def _draw_some(self) -> None:
        """Sparklines that are not as they should be, those of the newest runs first; where many are new, the
        rest waits for the next look."""
        until = time.monotonic() + _SPARKS_S
        old = [entry for entry in self._entries.values() if entry.drawn != entry.stream]
        for entry in sorted(old, key=lambda entry: entry.row["created"] or 0.0, reverse=True):
            if time.monotonic() > until:
                return
            name, row = entry.row["name"], entry.row
            if row["state"] != "refused":
                row = row | {"spark": _draw(self.runs_dir / name / "metrics.jsonl")}
            self._version += 1
            self._entries[name] = entry._replace(drawn=entry.stream, row=row, version=self._version)

    def _look_at_groups(self, paths: list[Path]) -> None:
        def find(name: str) -> Mapping[str, Any] | None:
            return self._entries[name].row if name in self._entries else None

        groups = [self._read_groups.describe(path, find) for path in paths if GroupDir(path).exists]
        if groups != self._groups:
            self._version += 1
            self._groups, self._groups_version = groups, self._version


def _draw(path: Path) -> list[float | None]:
    """The return at even distances, as precise as it can be seen."""
    rows = read_part(path, num_rows=_NUM_SPARK, whole_bytes=1 << 14).rows
    every = max(1, len(rows) // _NUM_SPARK)
    values = (_number(row.get("rollout/ep_rew_mean")) for row in rows[::every])
    return [None if value is None else float(f"{value:.4g}") for value in values]


def _is_text(name: str) -> bool:
    """Whether a name can stand in an address: not every name of a folder is Unicode."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _describe(run: RunDir) -> dict[str, Any]:
    """The row of a run; one that can't be read says why."""
    row: dict[str, Any] = dict.fromkeys((*_TEXTS, *_NUMBERS)) | {"name": run.name}
    row |= {"env": None, "parent": None, "main": None, "spark": None, "outcomes": {}}
    if not is_contained(run.path):
        return row | {"state": "refused", "cause": REFUSED}
    try:
        status, lineage = run.read_status(), lineage_of(run)
    except MissionGymError as error:
        return row | {"state": "damaged", "cause": str(error)}
    first, outcomes = read_first(run.metrics_jsonl), status.get("outcomes")
    row |= {key: _number(status.get(key)) for key in _NUMBERS}
    row |= {key: value for key in _TEXTS if isinstance(value := status.get(key), str)}
    if isinstance(outcomes, dict):
        row["outcomes"] = {name: _number(rate) for name, rate in outcomes.items()}
    row |= {"env": _find_env(first.get("time/plan")), "main": main_outcome(first)}
    return row | {"parent": lineage.parent if lineage else None}


def _number(value: Any) -> float | None:
    """A finite number, None for all else: a status may hold anything."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < 1e300 and math.isfinite(value) else None


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
