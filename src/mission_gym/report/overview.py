"""`watch --terminal`: live runs, the newest others and the newest groups, from rows of the dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.report.formats import MISSING, show_amount, show_count, show_duration, show_number, show_rate
from mission_gym.report.tables import STATE_STYLES, count_states, make_table, show_seeds
from mission_gym.store.rundir import STALL_S

Document = Mapping[str, Any]
_SILENT_S = 30.0  # without a heartbeat of a live run
_LIVE = ("starting", "running")
_NUM_GROUPS = 5  # the newest


def view_overview(
    rows: Sequence[Document], groups: Sequence[Document], folder: str, now: float, num_rows: int
) -> RenderableType:
    """`watch --terminal`: the live runs, then the newest, as many as fit; and the newest groups."""
    live = [row for row in rows if row["state"] in _LIVE]
    rest = [row for row in rows if row["state"] not in _LIVE]
    rest.sort(key=lambda row: -(row["created"] or 0.0))
    shown = [*live, *rest][: max(3, num_rows - min(len(groups), _NUM_GROUPS))]
    numbers = ("steps", "done", "return", "steps/s", "time left")
    table = make_table("run", "state", *numbers, "outcome", numbers=numbers)
    for row in shown:
        table.add_row(*_make_cells(row, now))
    pace = sum(row["now_fps"] or row["fps"] or 0.0 for row in live)
    head = f"{folder}: {len(rows):,} runs, {len(live)} running at {pace:,.0f} steps/s"
    left = len(rows) - len(shown)
    views: list[RenderableType] = [Text(head, style="bold"), table]
    views += [Text(f"{left:,} more", style="dim")] if left else []
    newest = sorted(groups, key=lambda group: -(group["created"] or 0.0))
    views += [Text(_show_group(group), style="dim") for group in newest[:_NUM_GROUPS]]
    return Group(*views)


def _make_cells(row: Document, now: float) -> list[str | Text]:
    state = row["state"] or MISSING
    is_live = state in _LIVE
    if is_live and now - (row["heartbeat"] or now) > _SILENT_S:
        state = "silent"
    total, step = row["total"], row["step"]
    outcomes = row["outcomes"] or {}
    name = row["main"] if row["main"] in outcomes else next(iter(outcomes), None)
    words = state
    if is_live and state != "silent" and row["phase"]:
        words = row["phase"]
        if (still := find_stall(row, now)) is not None:
            words = f"no step for {show_duration(still)}"
        elif row["phase_total"] is not None:
            words += f" {show_count(row['phase_done'])}/{show_count(row['phase_total'])}"
    return [
        row["name"],
        Text(words, style=STATE_STYLES.get(state, "")),
        show_count(step),
        show_rate(step / total if total and step is not None else None),
        show_number(row["return_mean"]),
        show_count(row["now_fps"] or row["fps"]),
        show_duration(row["eta_s"]) if is_live else "",
        "" if name is None else f"{name} {show_rate(outcomes[name])}",
    ]


def find_stall(status: Document, now: float) -> float | None:
    """Seconds without a step of a live run, if they are many; None otherwise. now: Unix time."""
    moved_at = status.get("moved_at")
    return now - moved_at if moved_at is not None and now - moved_at > STALL_S else None


def _show_group(group: Document) -> str:
    """A group in one line: its jobs by state, and its result."""
    if group["problem"]:
        return f"group {group['name']}: {group['problem']}"
    counts = count_states([job["state"] for job in group["jobs"]]) or show_amount(len(group["runs"]), "run")
    result = "" if group["iqm"] is None else f"; {show_seeds(group)}"
    return f"group {group['name']} ({group['kind']}): {counts}{result}"
