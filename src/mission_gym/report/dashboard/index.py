"""All runs and groups of a folder as plain rows, each read again only when its files have changed.

A run is shown only if its folder contains no link that leaves the runs folder. A page gets only the rows with
a newer version number than it has.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.config.plain_yaml import read_stored
from mission_gym.errors import MissionGymError
from mission_gym.report.dashboard.rows import REFUSED, Stamp, is_contained, read_first, read_part, stamp
from mission_gym.report.documents import best_evaluation, find_lineage
from mission_gym.report.groups import describe_jobs
from mission_gym.store.groups import GroupDir, GroupRecord, Job
from mission_gym.store.rundir import RunDir, View, list_fields
from mission_gym.store.sweeps import SWEEP, SweepRecord, label_trial, name_retest, name_trial, read_sweep

_FRESH_S = 0.5  # how old the reported state may be
_NUM_SPARK = 24  # points of a sparkline
_SPARKS_S = 0.2  # of each scan, for new sparklines
_NUM_CLOSE = 200  # ended runs that one scan checks; the others wait for the next scans
_SETTLED_NS = 2 * 10**9  # file systems have coarse clocks: a recent change may hide another one
_LIST_TURNS = 10  # scans after which folders are listed again in any case
_LIVE = ("starting", "running")
_NUM_LETTERS = 300  # of a cause
_NUM_VARIANTS = 8  # of a group that are drawn, one colour each
_NUMBERS, _TEXTS = list_fields(View.NUMBER), list_fields(View.TEXT)
FindRow = Callable[[str], Mapping[str, Any] | None]  # the row of a run, by name


class _Entry(NamedTuple):
    """A run as it was read, with the stamps of its files then."""

    stamps: tuple[Stamp, ...]  # of its status and its folder, which changes when a file is added or replaced
    stream: Stamp  # of its metrics
    drawn: Stamp | None  # of the metrics that its sparkline shows
    row: dict[str, Any]
    version: int


class Index:
    """The runs of one folder; safe to use from several threads."""

    def __init__(self, runs_dir: Path) -> None:
        self.shown = str(runs_dir)  # as the user gave it
        self.runs_dir = Path(os.path.realpath(runs_dir))
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._groups: list[dict[str, Any]] = []
        self._read_groups = _Groups()
        self._version = time.time_ns() // 1000  # above all versions of an earlier server
        self._names_version = self._groups_version = self._version  # of their last change
        self._folders: list[str] = []
        self._listed_ns, self._scanned_at, self._turn = 0, -_FRESH_S, 0
        self.problem = ""

    def find(self, name: str) -> RunDir | None:
        """The run of this name; None if there is none that may be shown."""
        if not name or name in (".", "..") or "/" in name or os.sep in name or "\0" in name:
            return None
        path = self.runs_dir / name
        run = RunDir(path)
        return run if run.exists and is_contained(path, "eval", "checkpoints") else None

    def changes(self, since: int) -> dict[str, Any]:
        """The rows that changed after version `since`; the names of all runs and the groups, None if they did
        not change."""
        with self._lock:
            self._scan()
            return {
                "version": self._version,
                "rows": [entry.row for entry in self._entries.values() if entry.version > since],
                "names": list(self._entries) if self._names_version > since else None,
                "groups": self._groups if self._groups_version > since else None,
                "problem": self.problem,
            }

    def find_group(self, name: str) -> GroupDir | None:
        """The group of this name; None if there is none that may be shown."""
        with self._lock:
            self._scan()
            is_known = any(group["name"] == name and not group["problem"] for group in self._groups)
        group = GroupDir(self.runs_dir / name)
        return group if is_known and is_contained(group.path, "jobs") else None

    def find_group_of(self, name: str) -> dict[str, Any] | None:
        """The row of the group of a run, as of the last scan."""
        with self._lock:
            self._scan()
            return next((group for group in self._groups if name in group["runs"]), None)

    def _scan(self) -> None:
        """Read what may have changed: live runs every time, ended runs in turns."""
        if time.monotonic() - self._scanned_at < _FRESH_S:
            return
        self._turn += 1
        self._list_folders()
        num_turns = -(-len(self._folders) // _NUM_CLOSE)
        before, others = set(self._entries), []
        for number, name in enumerate(self._folders):
            known = self._entries.get(name)
            if known is not None and (number + self._turn) % num_turns and known.row["state"] not in _LIVE:
                continue
            entry = self._read(name, known)
            if entry is not None:
                self._entries[name] = entry
            else:
                self._entries.pop(name, None)
                others.append(self.runs_dir / name)
        for name in before - set(self._folders):
            del self._entries[name]
        if before != set(self._entries):
            self._version += 1
            self._names_version = self._version
        self._draw_sparklines()
        groups = [
            self._read_groups.describe(path, self._find_row) for path in others if GroupDir(path).exists
        ]
        if groups != self._groups:
            self._version += 1
            self._groups, self._groups_version = groups, self._version
        self._scanned_at = time.monotonic()

    def _find_row(self, name: str) -> Mapping[str, Any] | None:
        return self._entries[name].row if name in self._entries else None

    def _list_folders(self) -> None:
        """List the folders again if one may have been added or removed."""
        changed_ns = stamp(self.runs_dir).mtime_ns
        is_old = time.time_ns() - changed_ns > _SETTLED_NS
        if changed_ns and changed_ns == self._listed_ns and is_old and self._turn % _LIST_TURNS:
            return
        self._listed_ns, self._folders, self.problem = changed_ns, [], ""
        try:
            with os.scandir(self.runs_dir) as scan:
                found = [item.name for item in scan if item.is_dir(follow_symlinks=False)]
            self._folders = sorted(filter(_is_unicode, found))
        except FileNotFoundError:
            self.problem = f"{self.shown} does not exist yet; the first run creates it"
        except OSError as error:
            self.problem = f"can't read {self.shown}: {error.strerror or error}"

    def _read(self, name: str, known: _Entry | None) -> _Entry | None:
        """A run in its present state; None for another kind of folder."""
        folder = f"{self.runs_dir}{os.sep}{name}{os.sep}"  # text, since Path is slow for many runs
        status = stamp(f"{folder}status.json")
        if not any(status) and not any(stamp(f"{folder}config.yaml")):
            return None
        stamps, stream = (status, stamp(folder)), stamp(f"{folder}metrics.jsonl")
        is_same = known is not None and known.stamps == stamps and any(known.stream) == any(stream)
        if known is not None and is_same and known.row["state"] not in _LIVE:
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

    def _draw_sparklines(self) -> None:
        """Update outdated sparklines, those of the newest runs first, as many as the time allows."""
        until = time.monotonic() + _SPARKS_S
        old = [entry for entry in self._entries.values() if entry.drawn != entry.stream]
        for entry in sorted(old, key=lambda entry: entry.row["created"] or 0.0, reverse=True):
            if time.monotonic() > until:
                return
            name, row = entry.row["name"], entry.row
            if row["state"] != "refused":
                row = row | {"spark": _make_sparkline(self.runs_dir / name / "metrics.jsonl")}
            self._version += 1
            self._entries[name] = entry._replace(drawn=entry.stream, row=row, version=self._version)


def _make_sparkline(path: Path) -> list[float | None]:
    """The return at even distances, with the digits that are visible."""
    rows = read_part(path, num_rows=_NUM_SPARK, whole_bytes=1 << 14).rows
    every = max(1, len(rows) // _NUM_SPARK)
    values = (_to_number(row.get("rollout/ep_rew_mean")) for row in rows[::every])
    return [None if value is None else float(f"{value:.4g}") for value in values]


def _is_unicode(name: str) -> bool:
    """Whether a folder's name can be part of an address."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _describe(run: RunDir) -> dict[str, Any]:
    """The row of a run, with the reason if it can't be read."""
    row: dict[str, Any] = dict.fromkeys((*_TEXTS, *_NUMBERS)) | {"name": run.name}
    row |= {"env": None, "algo": None, "parent": None, "main": None, "spark": None, "outcomes": {}}
    row |= {"best_return": None, "best_rate": None}
    if not is_contained(run.path):
        return row | {"state": "refused", "cause": REFUSED}
    try:
        status, lineage = run.read_status(), find_lineage(run)
    except MissionGymError as error:
        return row | {"state": "damaged", "cause": str(error)}
    first, outcomes = read_first_event(run), status.get("outcomes")
    if first.env is None:  # it failed, or is being planned
        env, algo = _read_config(run)
        first = first._replace(env=env, algo=algo)
    row |= {key: _to_number(status.get(key)) for key in _NUMBERS}
    row |= {key: value for key in _TEXTS if isinstance(value := status.get(key), str)}
    if isinstance(outcomes, dict):
        row["outcomes"] = {name: _to_number(rate) for name, rate in outcomes.items()}
    parent = lineage.parent if lineage else None
    best = (best_evaluation(run) if is_contained(run.path, "eval") else None) or {}
    rate = ((best.get("outcomes") or {}).get(first.main_outcome) or {}).get("rate")
    return row | {
        "env": first.env,
        "algo": first.algo,
        "main": first.main_outcome,
        "parent": parent,
        "best_return": _to_number(best.get("return_mean")),
        "best_rate": _to_number(rate),
    }


def _to_number(value: Any) -> float | None:
    """A finite number; None for anything else that a status may contain."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < 1e300 and math.isfinite(value) else None


class FirstEvent(NamedTuple):
    """The first event of a run, which describes it."""

    env: str | None
    algo: str | None
    main_outcome: str | None
    stages: list[str]  # of its curriculum


def read_first_event(run: RunDir) -> FirstEvent:
    """The first event; values of a wrong type are left out."""
    first = read_first(run.metrics_jsonl)
    plan, outcome, stages = first.get("time/plan"), first.get("main_outcome"), first.get("stages")
    facts = plan.get("facts") if isinstance(plan, dict) else None
    rows = [fact for fact in facts if isinstance(fact, dict)] if isinstance(facts, list) else []
    return FirstEvent(
        next((str(fact.get("value")) for fact in rows if fact.get("name") == "environment"), None),
        algo if isinstance(algo := first.get("algo"), str) else None,
        outcome if isinstance(outcome, str) else None,
        [str(name) for name in stages] if isinstance(stages, list) else [],
    )


def _read_config(run: RunDir) -> tuple[str | None, str | None]:
    """The environment and the algorithm of a run that has no events yet."""
    try:
        stored = read_stored(run.config_yaml)
        return str(stored["env.env_id"].value), str(stored["run.algo"].value)
    except (MissionGymError, KeyError):
        return None, None


class _StoredGroup(NamedTuple):
    stamps: tuple[Stamp, ...]
    record: GroupRecord
    jobs: dict[str, Job]
    sweep: SweepRecord | None


class _Groups:
    """The groups of a folder, read again when their files change.

    A journal contains paths of the machine that wrote it, so a run is found by its name in the index.
    """

    def __init__(self) -> None:
        self._stored: dict[Path, _StoredGroup] = {}

    def describe(self, path: Path, find_row: FindRow) -> dict[str, Any]:
        """The row of a group, with the reason if it can't be read."""
        kind, problem = "refused", REFUSED
        if is_contained(path, "jobs"):
            try:
                stored = self._read(GroupDir(path))
                return {
                    "name": path.name,
                    **stored.record.model_dump(
                        include={"kind", "iqm", "low", "high", "mean", "values", "created"}
                    ),
                    "runs": list(dict.fromkeys(_list_run_names(stored))),
                    "variants": _list_variants(path.name, stored),
                    "best_score": _find_score(stored.sweep),
                    "jobs": _describe_jobs(GroupDir(path), stored.jobs, find_row),
                    "problem": "",
                }
            except (MissionGymError, OSError) as error:
                self._stored.pop(path, None)
                kind, problem = "damaged", str(error)
        unknown = dict.fromkeys(("iqm", "low", "high", "mean", "values", "created"))
        empty: dict[str, Any] = {"runs": [], "jobs": [], "variants": [], "best_score": None}
        return {"name": path.name, "kind": kind, **unknown, **empty, "problem": problem}

    def _read(self, group: GroupDir) -> _StoredGroup:
        files = (group.group_json, group.journal.path, group.path / "jobs", group.path / SWEEP)
        stamps = tuple(stamp(path) for path in files)
        stored = self._stored.get(group.path)
        if stored is None or stored.stamps != stamps:
            record = group.read()
            sweep = None
            with suppress(MissionGymError):  # it is written after the first trial
                sweep = read_sweep(group) if record.kind == "sweep" else None
            stored = self._stored[group.path] = _StoredGroup(stamps, record, group.read_jobs(), sweep)
        return stored


def _list_run_names(stored: _StoredGroup) -> Iterator[str]:
    """The runs of the group's result, and those of jobs that have not ended."""
    yield from (Path(run).name for run in stored.record.runs)
    yield from (job.run.name for job in stored.jobs.values() if job.run is not None)


def _list_variants(name: str, stored: _StoredGroup) -> list[dict[str, Any]]:
    """The variants of a group that are drawn, each with the names of its runs: all, or of a sweep the ones
    that were trained again, or else the best trials. A group without jobs is one variant."""
    runs: dict[str, list[str]] = {}
    for job in stored.jobs.values():
        if job.run is not None:
            runs.setdefault(job.request.variant, []).append(job.run.name)
    runs = runs or {name: [Path(run).name for run in stored.record.runs]}
    names, labels = list(runs), {name: name for name in runs}
    if stored.sweep is not None:
        scored = [row for row in stored.sweep.trials if row.score is not None]
        ranked = sorted(scored, key=lambda row: -(row.score or 0.0))
        again = [name_retest(each.trial) for each in stored.sweep.candidates]
        names = [name for name in again or (name_trial(row.number) for row in ranked) if name in runs]
        for row in stored.sweep.trials:
            labels[name_trial(row.number)] = label = label_trial(row.number, row.source)
            labels[name_retest(row.number)] = f"{label} on fresh seeds"
    return [{"name": labels[name], "runs": runs[name]} for name in names[:_NUM_VARIANTS]]


def _find_score(sweep: SweepRecord | None) -> float | None:
    """The mean of a sweep's winner, or else the score of its best trial so far."""
    if sweep is None:
        return None
    means = [each.mean for each in sweep.candidates if each.trial == sweep.best_trial]
    scores = [row.score for row in sweep.trials if row.score is not None]
    return _to_number(means[0]) if means else max(scores, default=None)


def _describe_jobs(group: GroupDir, jobs: Mapping[str, Job], find_row: FindRow) -> list[dict[str, Any]]:
    """The jobs in the order of their start: running ones, waiting ones by priority, ended ones."""
    described = describe_jobs(group, jobs, lambda path: find_row(path.name) or {})
    found = []
    for row, job in zip(described, jobs.values(), strict=True):
        run = job.run.name if job.run is not None else None
        parent = jobs.get(job.request.parent or "")
        waits_for = parent.name if parent is not None and not parent.has_ended else None
        found.append(
            {key: row[key] for key in ("name", "state", "cores", "attempts")}
            | {
                "run": run if run and find_row(run) else None,
                "cause": (row["cause"] or "").partition("\n")[0][:_NUM_LETTERS],
                "variant": job.request.variant,
                "priority": job.request.priority,
                "waits_for": waits_for if row["state"] == "queued" else None,
            }
        )
    ranks = {"running": 0, "starting": 0, "queued": 1}

    def rank(job: dict[str, Any]) -> tuple[int, int]:
        return ranks.get(job["state"], 2), -job["priority"] if job["state"] == "queued" else 0

    return sorted(found, key=rank)
