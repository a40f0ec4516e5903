"""The scaling guide of an environment on one machine, from what `tune` measured.

Environments against steps per second and memory, and how long trainings of usual lengths take; as Markdown,
and as values for a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mission_gym.report.formats import show_count, show_duration

Document = Mapping[str, Any]
TOTALS = {"10k": 10_000, "100k": 100_000, "300k": 300_000, "500k": 500_000, "900k": 900_000, "5M": 5_000_000}
_MOST_COLUMNS = 7  # of the table of times


class GuideTable(NamedTuple):
    """A table as it is shown; all columns but the first and the last are numbers."""

    title: str
    head: list[str]
    rows: list[list[str]]


class Guide(NamedTuple):
    """What a person reads before they choose a number of environments."""

    tables: list[GuideTable]
    notes: list[str]


def make_guide(entry: Document) -> Guide:
    """The guide of a plan as it is kept: its scaling, what was measured, and the machine."""
    points: Sequence[Document] = entry["scaling"]
    env, machine = entry["measured"]["env"], entry.get("machine")
    notes = [f"Measured in {entry['spent_s']:.0f} s. Rates are of training, collecting and learning."]
    if machine:
        notes[0] = (
            f"Machine: {machine['cpu']}, {machine['usable_cores']} usable cores,"
            f" {machine['memory_bytes'] / 1e9:.1f} GB. {notes[0]}"
        )
    notes.append(
        f"An environment takes {env['memory_bytes'] / 1e6:.1f} MB, a worker process"
        f" {env['worker_bytes'] / 1e6:.0f} MB. *Memory* is that of all processes, with rollout and learner;"
        " *each more* is what an environment adds to that of the row above."
    )
    notes.append(
        "*tried*: this layout collected for a moment, and the update was timed. Other rows follow from the"
        " nearest one that was tried. Behind the *knee* more environments give less than a twentieth."
    )
    return Guide([_make_scaling(points), _make_times(points)], notes)


def write_markdown(env_id: str, entry: Document) -> str:
    """The guide as Markdown."""
    guide = make_guide(entry)
    lines = [f"# Scaling guide: {env_id}", "", guide.notes[0], ""]
    for table, note in zip(guide.tables, guide.notes[1:], strict=True):
        numbers = ["---:"] * (len(table.head) - 1)
        lines += [f"## {table.title}", "", *map(_write_row, (table.head, ["---", *numbers], *table.rows))]
        lines += ["", note, ""]
    return "\n".join(lines)


def _write_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _make_scaling(points: Sequence[Document]) -> GuideTable:
    rows, first = [], points[0]
    for before, point in zip((None, *points), points, strict=False):
        added = "n/a"
        if before is not None:
            more = point["memory_bytes"] - before["memory_bytes"]
            added = f"{more / (point['n_envs'] - before['n_envs']) / 1e6:.1f} MB"
        marks = [
            *(["tried"] if point.get("tried") else []),
            *(["knee"] if point["knee"] else []),
            *([] if point["fits"] else ["does not fit in memory"]),
        ]
        rows.append(
            [
                f"{show_count(point['n_envs'])} ({_describe(point)})",
                show_count(point["steps_per_s"]),
                f"{point['steps_per_s'] / first['steps_per_s']:.1f} x",
                f"{point['memory_bytes'] / 1e9:.2f} GB",
                added,
                ", ".join(marks),
            ]
        )
    head = ["environments", "steps/s", "gain", "memory", "each more", ""]
    return GuideTable("Environments, speed and memory", head, rows)


def _describe(point: Document) -> str:
    """Where the environments of a row run."""
    workers = point["num_workers"]
    return f"{point['backend']}, {workers} workers" if workers > 1 else str(point["backend"])


def _make_times(points: Sequence[Document]) -> GuideTable:
    """How long trainings take, by environments: up to the knee, and the number behind it."""
    knee = next((place for place, point in enumerate(points) if point["knee"]), len(points) - 1)
    shown = [point for point in points[: knee + 2] if point["fits"]][-_MOST_COLUMNS:]
    rows = [
        [name, *(show_duration(total / point["steps_per_s"]) for point in shown)]
        for name, total in TOTALS.items()
    ]
    head = ["steps", *(f"{show_count(point['n_envs'])} envs" for point in shown)]
    return GuideTable("Time of a training", head, rows)
