"""Where a run's time went: phases by role, the machine's use, the last timeline and the verdict.

Read from the metrics stream: `phase/*` of all rows are added up, over every process of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.clock import ROLES
from mission_gym.report.formats import MISSING, show_duration, show_number, show_rate
from mission_gym.report.tables import list_verdict, make_pairs, make_table
from mission_gym.store.rundir import RunDir, Verdict
from mission_gym.store.tables import MetricsLog
from mission_gym.store.validation import Count, Record, Str, validate

Row = Mapping[str, Any]
MEANINGS = {
    "act": "choosing actions",
    "env": "stepping environments",
    "wait": "waiting for the slowest worker",
    "copy": "weights, rows and messages",
    "values": "values and advantages",
    "update": "gradient steps",
    "record": "rows, logs and the progress line",
    "evaluate": "evaluating",
    "save": "saving checkpoints",
    "idle": "nothing to do",
}


def describe_time(run: RunDir) -> dict[str, Any]:
    """The document of `runs timeline`."""
    return {"run": run.name} | check_time(sum_up(MetricsLog.stream(run.metrics_jsonl)), run.metrics_jsonl)


def check_time(document: Row, path: Path = Path("metrics.jsonl")) -> dict[str, Any]:
    """What `sum_up` gave, in the types that views count on; RunStateError if it has others."""
    return validate(path, document, _TIMES).model_dump()


_LONGEST_S = 1e12
_Seconds = Annotated[float, Field(gt=-_LONGEST_S, lt=_LONGEST_S)]


class _Times(Record):
    """What is read of the rows by name."""

    wall_s: _Seconds | None
    roles: dict[Str, dict[Str, _Seconds]]
    machine: dict[Str, float | None]
    verdict: Verdict | None
    updates: tuple[Count, Count] | None
    spans: list[tuple[Str, Str, _Seconds, _Seconds]]
    cores: list[Any]


_TIMES = TypeAdapter(_Times)


def sum_up(rows: Iterable[Row], whole_s: float | None = None) -> dict[str, Any]:
    """The same from rows; what was not measured is None. whole_s: how long the run took, where the rows are a
    sample of it; all times are then estimates."""
    seconds: dict[str, float] = {}
    last: Row = {}
    end: Row = {}
    for row in rows:
        add_phases(seconds, row)
        match row.get("event"):
            case "timeline":
                last = row
            case "end":
                end = row
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
        "updates": last.get("time/updates"),
        "spans": last.get("time/spans", []),
        "cores": last.get("time/cores", []),
    }


def add_phases(seconds: dict[str, float], row: Row) -> None:
    """Add a row's seconds to those of each phase."""
    for key, spent in row.items():
        if key.startswith("phase/") and key.endswith("_s"):
            if not isinstance(spent, int | float) or not abs(spent) < _LONGEST_S:
                continue  # of a damaged file
            name = key.removeprefix("phase/").removesuffix("_s")
            seconds[name] = seconds.get(name, 0.0) + spent


def list_phases(document: Row) -> list[tuple[str, str, str, str, str]]:
    """Role, phase, time, share of the wall time and meaning of each phase."""
    wall_s = document["wall_s"]
    return [
        (role, name, show_duration(spent), show_rate(spent / wall_s if wall_s else None), MEANINGS[name])
        for role, phases in document["roles"].items()
        for name, spent in phases.items()
    ]


def view_time(document: Row) -> RenderableType:
    """`runs timeline`: phases, the machine's use and the verdict."""
    table = make_table("role", "phase", "time", "share", "", numbers=("time", "share"))
    told = ""
    for role, *cells, meaning in list_phases(document):
        table.add_row("" if role == told else role, *cells, Text(meaning, style="dim"))
        told = role
    rows = [("overlap", show_rate(document["overlap"])), *list_machine(document["machine"])]
    rows += list_verdict(document["verdict"])
    return Group(table, Text(), make_pairs(rows))


def list_machine(machine: Mapping[str, float]) -> list[tuple[str, str]]:
    """The use of cores, memory and GPU in words, by phase where it was sampled."""
    own = show_number(machine.get("machine/own_cores"))
    used, size = machine.get("machine/memory_use_max"), machine.get("machine/memory_bytes_max")
    memory = MISSING if size is None else f"{size / 1e9:.2f} GB"
    rows = [
        ("cpu", f"{_show_use(machine, 'cpu')}; this run {own} cores"),
        ("memory", f"{memory} at most; {show_rate(used)} of the machine's in use"),
    ]
    gpu = [name for name in machine if name.startswith("machine/gpu")]
    if gpu:
        size = machine.get("machine/gpu_memory_bytes_max")
        details = [MISSING if size is None else f"{size / 1e9:.2f} GB"]
        for name, unit in (("gpu_power_w", "W"), ("gpu_temperature_c", "C"), ("gpu_clock_mhz", "MHz")):
            details.append(f"{show_number(machine.get(f'machine/{name}'))} {unit}")
        rows.append(("gpu", f"{_show_use(machine, 'gpu_use')}; {', '.join(details)}"))
    return rows


def _show_use(machine: Mapping[str, float], name: str) -> str:
    phases = {"collecting": "collect", "learning": "update", "evaluating": "evaluate", "saving": "save"}
    parts = [f"{text} {show_rate(machine.get(f'machine/{name}_{key}'))}" for text, key in phases.items()]
    return f"{show_rate(machine.get(f'machine/{name}'))} busy ({', '.join(parts)})"
