"""Where a run's time went: phases by role, the use of the machine, the last timeline and the verdict.

Read from the metrics stream: the `phase/*` values of all rows are summed, over every process of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.clock import ROLES
from mission_gym.report.formats import MISSING, show_duration, show_gb, show_number, show_rate
from mission_gym.report.tables import list_verdict, make_pairs, make_table
from mission_gym.store.files import Count, Record, Str, validate
from mission_gym.store.rundir import RunDir, Verdict
from mission_gym.store.tables import MetricsLog

Row = Mapping[str, Any]
_MEANINGS = {
    "act": "choosing actions",
    "env": "stepping environments",
    "wait": "waiting for the slowest worker",
    "lost": "calls that do not return",
    "copy": "weights, rows and messages",
    "values": "values and advantages",
    "update": "gradient steps",
    "record": "rows, logs and the progress line",
    "evaluate": "evaluating",
    "save": "saving checkpoints",
    "idle": "nothing to do",
}
_LONGEST_S = 1e12
_Seconds = Annotated[float, Field(gt=-_LONGEST_S, lt=_LONGEST_S)]


class _Times(Record):
    """The fields of the document that views rely on."""

    wall_s: _Seconds | None
    roles: dict[Str, dict[Str, _Seconds]]
    machine: dict[Str, float | None]
    verdict: Verdict | None
    updates: tuple[Count, Count] | None
    spans: list[tuple[Str, Str, _Seconds, _Seconds]]
    cores: list[Any]


_TIMES = TypeAdapter(_Times)


def describe_time(run: RunDir) -> dict[str, Any]:
    """The document of `runs timeline`."""
    return {"run": run.name} | check_time(sum_phases(MetricsLog.stream(run.metrics_jsonl)), run.metrics_jsonl)


def check_time(document: Row, path: Path = Path("metrics.jsonl")) -> dict[str, Any]:
    """The result of `sum_phases` with checked types; RunStateError if they are wrong."""
    return validate(path, document, _TIMES).model_dump()


def sum_phases(rows: Iterable[Row], whole_s: float | None = None) -> dict[str, Any]:
    """The document of rows; values that were not measured are None. whole_s: the duration of a run whose rows
    are a sample; all times are then estimates."""
    seconds: dict[str, float] = {}
    last: dict[str, Row] = {}  # by kind of event
    for row in rows:
        add_phases(seconds, row)
        last[str(row.get("event"))] = row
    timeline, end = last.get("timeline", {}), last.get("end", {})
    if whole_s and seconds.get("wall", 0.0) > 0:
        seconds = {name: spent * whole_s / seconds["wall"] for name, spent in seconds.items()}
    roles = {
        role: {name: seconds.get(name, 0.0) for name in names} | {"idle": seconds.get(f"{role}_idle", 0.0)}
        for role, names in ROLES.items()
    }
    both_s = seconds.get("collect", 0.0) + seconds.get("learn", 0.0)
    training_s = seconds.get("wall", 0.0) - sum(seconds.get(name, 0.0) for name in ROLES["main"])
    return {
        "wall_s": seconds.get("wall"),
        "roles": roles,
        "overlap": max(0.0, 1.0 - training_s / both_s) if both_s > 0 else None,
        "machine": end.get("time/machine") or {},
        "verdict": end.get("time/verdict"),
        "updates": timeline.get("time/updates"),
        "spans": timeline.get("time/spans", []),
        "cores": timeline.get("time/cores", []),
    }


def add_phases(seconds: dict[str, float], row: Row) -> None:
    """Add the seconds of a row to those of each phase."""
    for key, spent in row.items():
        is_phase = key.startswith("phase/") and key.endswith("_s")
        if is_phase and isinstance(spent, int | float) and abs(spent) < _LONGEST_S:  # else damaged
            name = key.removeprefix("phase/").removesuffix("_s")
            seconds[name] = seconds.get(name, 0.0) + spent


def list_phases(document: Row) -> list[tuple[str, str, str, str, str]]:
    """Role, phase, time, share of the wall time and meaning of each phase."""
    wall_s = document["wall_s"]
    return [
        (role, name, show_duration(spent), show_rate(spent / wall_s if wall_s else None), _MEANINGS[name])
        for role, phases in document["roles"].items()
        for name, spent in phases.items()
    ]


def view_time(document: Row) -> RenderableType:
    """`runs timeline`: phases, the use of the machine and the verdict."""
    table = make_table("role", "phase", "time", "share", "", numbers=("time", "share"))
    last = ""
    for role, *cells, meaning in list_phases(document):
        table.add_row("" if role == last else role, *cells, Text(meaning, style="dim"))
        last = role
    rows = [("overlap", show_rate(document["overlap"])), *list_machine(document["machine"])]
    return Group(table, Text(), make_pairs([*rows, *list_verdict(document["verdict"])]))


def list_machine(machine: Mapping[str, float]) -> list[tuple[str, str]]:
    """The use of cores, memory and GPU, by phase if it was sampled."""
    own, used = machine.get("machine/own_cores"), show_rate(machine.get("machine/memory_use_max"))
    memory = show_gb(machine.get("machine/memory_bytes_max"))
    rows = [
        ("cpu", f"{_show_use(machine, 'cpu')}; this run {MISSING if own is None else round(own, 1)} cores"),
        ("memory", f"{memory} at most; {used} of the machine's memory in use"),
    ]
    if any(name.startswith("machine/gpu") for name in machine):
        details = [show_gb(machine.get("machine/gpu_memory_bytes_max"))]
        for name, unit in (("gpu_power_w", "W"), ("gpu_temperature_c", "C"), ("gpu_clock_mhz", "MHz")):
            details.append(f"{show_number(machine.get(f'machine/{name}'))} {unit}")
        rows.append(("gpu", f"{_show_use(machine, 'gpu_use')}; {', '.join(details)}"))
    return rows


def _show_use(machine: Mapping[str, float], name: str) -> str:
    phases = {"collecting": "collect", "learning": "update", "evaluating": "evaluate", "saving": "save"}
    parts = [f"{text} {show_rate(machine.get(f'machine/{name}_{key}'))}" for text, key in phases.items()]
    return f"{show_rate(machine.get(f'machine/{name}'))} busy ({', '.join(parts)})"
