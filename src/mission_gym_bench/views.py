"""The rows of a benchmark as rich tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.report.formats import show_number, show_value
from mission_gym.report.tables import make_table

Document = Mapping[str, Any]


def view_bench(rows: Sequence[Document]) -> RenderableType:
    """`bench`: ours next to the best peer; below it all other keys, and the machines once."""
    table = make_table("case", "ours", "unit", "peer", "ratio", numbers=("ours", "peer", "ratio"))
    details: list[RenderableType] = []
    machines = ("machine", "peers_machine")
    hidden = ("case", "ours", "ratio", "unit", *machines)
    for row in rows:
        # The ratio shows which direction is better.
        peers = [number for number in row["peers"].values() if number is not None]
        more_is_better = bool(peers and row["ratio"]) and (row["ours"] >= max(peers)) == (row["ratio"] >= 1)
        best = (max if more_is_better else min)(peers) if peers else None
        table.add_row(
            row["case"], show_number(row["ours"]), row["unit"], show_number(best), show_number(row["ratio"])
        )
        more = {key: value for key, value in row.items() if key not in hidden and value not in ("", {}, None)}
        if more:
            text = "; ".join(f"{key.replace('_', ' ')} {_show_nested(value)}" for key, value in more.items())
            details.append(Text(f"{row['case']}: {text}", style="dim"))
    for key in machines:
        machine = next((row[key] for row in rows if key in row), None)
        if machine:
            details.append(Text(f"{key.replace('_', ' ')}: {_show_nested(machine)}", style="dim"))
    return Group(table, Text(), *details)


def view_faults(rows: Sequence[Document]) -> RenderableType:
    """`bench faults`: the number of faults tried and survived by group; below it those that were not."""
    table = make_table("group", "tried", "held", numbers=("tried", "held"))
    for row in rows:
        table.add_row(row["case"].removeprefix("faults: "), str(row["tried"]), str(row["held"]))
    table.add_row("all", *(str(sum(row[key] for row in rows)) for key in ("tried", "held")))
    details = [
        Text(f"{name}: {what}", style=style)
        for row in rows
        for key, style in (("failures", "red"), ("skipped", "dim"))
        for name, what in row[key].items()
    ]
    return Group(table, Text(), *details)


def _show_nested(value: Any) -> str:
    """A nested value in one line, numbers with four digits."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_show_nested(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_show_nested(item) for item in value)
    return show_number(value) if isinstance(value, float) else show_value(value)
