"""The plan and the scaling of an environment on one machine, as `tune` measured them.

Steps per second and memory against the number of environments, and the duration of trainings: as a table of
the terminal, as Markdown, and as values for a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mission_gym.report.formats import MISSING, show_count, show_duration, show_gb
from mission_gym.report.tables import make_pairs, make_table

Document = Mapping[str, Any]
TOTALS = {"10k": 10_000, "100k": 100_000, "300k": 300_000, "500k": 500_000, "900k": 900_000, "5M": 5_000_000}
_BAR = 14  # characters of the longest bar: the table fits into 80 columns
_MOST_COLUMNS = 7  # of the table of times


def view_advice(document: Document) -> RenderableType:
    """`tune`: the plan, its reasons, and the scaling table."""
    times = ", ".join(f"{name} {show_duration(s)}" for name, s in document["predicted_s"].items())
    threads = f", {document['threads']} threads" if document["threads"] > 1 else ""
    source = "from the stored plan" if document["cached"] else f"measured in {document['spent_s']:.0f} s"
    rows = [
        ("environment", document["env_id"]),
        ("environments", f"{document['n_envs']} x {document['n_steps_per_env']} steps"),
        ("backend", document["how"]),
        ("learner", f"{document['kernel']} kernel on {document['device']}{threads}"),
        ("expected", f"{show_count(document['predicted_steps_per_s'])} steps/s of training, {source}"),
        ("times", times),
        ("memory", show_gb(document["memory_bytes"])),
        *(("" if number else "reasons", reason) for number, reason in enumerate(document["reasons"])),
        *(("" if number else "changes", change) for number, change in enumerate(document["changes"])),
    ]
    parts: list[RenderableType] = [make_pairs(rows), Text(), _make_table(document["scaling"])]
    if "cluster" in document:
        parts += [Text(), view_cluster(document["cluster"])]
    return Group(*parts)


def view_cluster(document: Document) -> RenderableType:
    """The nodes and versions of a cluster, and the measured cost of its messages."""
    costs = document["costs"]
    nodes = ", ".join(f"{node['host']} {node['num_cpus']} CPUs" for node in document["nodes"])
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return make_pairs(
        [
            ("cluster", f"{document['address']}: {nodes}"),
            ("versions", versions),
            (
                "messages",
                f"{1e3 * costs['latency_s']:.1f} ms per call, {1e3 * costs['call_s']:.2f} ms of the driver;"
                f" put {1e3 * costs['put_s']:.1f} ms + {1e9 * costs['put_byte_s']:.2f} ms per MB, get"
                f" {1e9 * costs['get_byte_s']:.2f}, between nodes {1e9 * costs['carry_byte_s']:.2f}",
            ),
        ]
    )


def _make_table(points: Sequence[Document]) -> Table:
    numbers = ("environments", "steps/s", "memory")
    table = make_table(*numbers, "how", "", numbers=numbers)
    most = max(point["steps_per_s"] for point in points)
    for point in points:
        bar = "#" * max(1, round(_BAR * point["steps_per_s"] / most))
        mark = " <- knee" if point["knee"] else "" if point["fits"] else " does not fit in memory"
        table.add_row(
            show_count(point["n_envs"]),
            show_count(point["steps_per_s"]),
            show_gb(point["memory_bytes"]),
            point["how"],
            bar + mark,
        )
    return table


class GuideTable(NamedTuple):
    """A table of the scaling guide; all columns but the first and the last are numbers."""

    title: str
    head: list[str]
    rows: list[list[str]]


class Guide(NamedTuple):
    """The scaling guide, for choosing a number of environments."""

    tables: list[GuideTable]
    notes: list[str]


def make_guide(entry: Document) -> Guide:
    """The guide of a stored plan: its scaling, its measurements, and the machine."""
    points: Sequence[Document] = entry["scaling"]
    env, machine = entry["measured"]["env"], entry.get("machine")
    notes = [
        f"Measured in {entry['spent_s']:.0f} s. Rates are those of training: collecting and learning.",
        f"An environment takes {env['memory_bytes'] / 1e6:.1f} MB, a worker process"
        f" {env['worker_bytes'] / 1e6:.0f} MB. *Memory* is that of all processes, with rollout and learner;"
        " *per env* is the memory that each environment adds to the row above.",
        "*tried*: this layout collected for a moment, and the update was timed. Other rows are predicted from"
        " the nearest row that was tried. Beyond the *knee*, more environments gain less than 5 %.",
    ]
    if machine:
        notes[0] = (
            f"Machine: {machine['cpu']}, {machine['usable_cores']} usable cores,"
            f" {machine['memory_bytes'] / 1e9:.1f} GB. {notes[0]}"
        )
    return Guide([_make_scaling(points), _make_times(points)], notes)


def make_markdown(env_id: str, entry: Document) -> str:
    """The guide as Markdown."""
    guide = make_guide(entry)
    lines = [f"# Scaling guide: {env_id}", "", guide.notes[0], ""]
    for table, note in zip(guide.tables, guide.notes[1:], strict=True):
        rows = (table.head, ["---", *["---:"] * (len(table.head) - 1)], *table.rows)
        lines += [f"## {table.title}", ""]
        lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
        lines += ["", note, ""]
    return "\n".join(lines)


def _make_scaling(points: Sequence[Document]) -> GuideTable:
    rows, first = [], points[0]
    for before, point in zip((None, *points), points, strict=False):
        added = MISSING
        if before is not None:
            more = point["memory_bytes"] - before["memory_bytes"]
            added = f"{more / (point['n_envs'] - before['n_envs']) / 1e6:.1f} MB"
        marks = {
            "tried": point.get("tried"),
            "knee": point["knee"],
            "does not fit in memory": not point["fits"],
        }
        workers = f", {point['num_workers']} workers" if point["num_workers"] > 1 else ""
        rows.append(
            [
                f"{show_count(point['n_envs'])} ({point['backend']}{workers})",
                show_count(point["steps_per_s"]),
                f"{point['steps_per_s'] / first['steps_per_s']:.1f} x",
                show_gb(point["memory_bytes"]),
                added,
                ", ".join(mark for mark, is_set in marks.items() if is_set),
            ]
        )
    head = ["environments", "steps/s", "gain", "memory", "per env", ""]
    return GuideTable("Environments, speed and memory", head, rows)


def _make_times(points: Sequence[Document]) -> GuideTable:
    """The duration of trainings by number of environments, up to the knee and one beyond it."""
    knee = next((place for place, point in enumerate(points) if point["knee"]), len(points) - 1)
    shown = [point for point in points[: knee + 2] if point["fits"]][-_MOST_COLUMNS:]
    rows = [
        [name, *(show_duration(total / point["steps_per_s"]) for point in shown)]
        for name, total in TOTALS.items()
    ]
    head = ["steps", *(f"{show_count(point['n_envs'])} envs" for point in shown)]
    return GuideTable("Time of a training", head, rows)
