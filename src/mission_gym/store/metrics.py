"""The metrics of every run, from metrics.yaml: name, unit, meaning, signs of trouble.

These texts exist only there and in the metrics.yaml of each algorithm; the documentation is generated.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

_OWN = Path(__file__).with_name("metrics.yaml")
# Only metrics with these prefixes may differ between equal runs.
TIMED = ("time/", "phase/", "machine/")


class Metric(NamedTuple):
    """One metric, or a family whose name ends in `*`."""

    name: str
    unit: str
    text: str
    bad: str = ""  # signs of a bad value, and what to do
    healthy: tuple[float | None, float | None] | None = None  # smallest and largest healthy value
    charts: tuple[str, ...] = ("run",)  # where the dashboard draws it: run, machine, compare


@cache
def read_metrics(path: Path = _OWN) -> tuple[Metric, ...]:
    """Read the table of every run, or that of an algorithm."""
    rows = yaml.safe_load(path.read_text("utf-8"))
    return tuple(Metric(name, **row) for name, row in rows.items())
