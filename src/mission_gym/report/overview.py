"""All runs of a folder as a table for a terminal: what the Runs page tells, for an ssh session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.report.formats import show_count, show_duration, show_number, show_rate
from mission_gym.report.groups import tell_counts
from mission_gym.report.tables import make_table

Row = Mapping[str, Any]
_STYLES = {
    "running": "cyan", "starting": "cyan", "done": "green", "stopped": "yellow", "silent": "yellow",
    "failed": "red", "damaged": "red", "refused": "red",
}  # fmt: skip
_SILENT_S = 30.0  # without a heartbeat, of a run that should be alive
_ALIVE = ("starting", "running")
_NUM_GROUPS = 5  # the newest


def view_overview(
    rows: Sequence[Row], groups: Sequence[Row], folder: str, now: float, num_rows: int
) -> RenderableType:
    """The runs at work first, then the newest, as many as fit."""
    alive = [row for row in rows if row["state"] in _ALIVE]
    rest = sorted(
        (row for row in rows if row["state"] not in _ALIVE), key=lambda row: -(row["created"] or 0.0)
    )
    shown = [*alive, *rest][: max(3, num_rows - min(len(groups), _NUM_GROUPS))]
    numbers = ("steps", "done", "return", "steps/s", "to go")
    table = make_table("run", "state", *numbers, "outcome", numbers=numbers)
    for row in shown:
        table.add_row(*_cells(row, now))
    pace = sum(row["now_fps"] or row["fps"] or 0.0 for row in alive)
    head = f"{folder}: {len(rows):,} runs, {len(alive)} at work at {pace:,.0f} steps/s"
    left = len(rows) - len(shown)
    views: list[RenderableType] = [Text(head, style="bold"), table]
    views += [Text(f"{left:,} more", style="dim")] if left else []
    newest = sorted(groups, key=lambda group: -(group["created"] or 0.0))
    views += [Text(_show_group(group), style="dim") for group in newest[:_NUM_GROUPS]]
    return Group(*views)


def _cells(row: Row, now: float) -> list[str | Text]:
    state = row["state"] or "n/a"
    is_alive = state in _ALIVE
    if is_alive and now - (row["heartbeat"] or now) > _SILENT_S:
        state = "silent"
    total, step = row["total"], row["step"]
    outcomes = row["outcomes"] or {}
    name = row["main"] if row["main"] in outcomes else next(iter(outcomes), None)
    return [
        row["name"],
        Text(
            row["phase"] or state if is_alive and state != "silent" else state, style=_STYLES.get(state, "")
        ),
        show_count(step),
        show_rate(step / total if total and step is not None else None),
        show_number(row["return_mean"]),
        show_count(row["now_fps"] or row["fps"]),
        show_duration(row["eta_s"]) if is_alive else "",
        "" if name is None else f"{name} {show_rate(outcomes[name])}",
    ]


def _show_group(group: Row) -> str:
    """A group in a line: its jobs by state, and its result where there is one."""
    if group["problem"]:
        return f"group {group['name']}: {group['problem']}"
    counts = tell_counts([job | {"fps": None} for job in group["jobs"]]) or f"{len(group['runs'])} runs"
    result = "" if group["iqm"] is None else f"; IQM {show_number(group['iqm'])}"
    return f"group {group['name']} ({group['kind']}): {counts}{result}"
