"""The numbers in every run's metrics stream, as metrics.yaml has them: name, unit, meaning, what is bad.

That table, with `metrics` of each algorithm, is the one place for these texts; documentation is made of it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

_OWN = Path(__file__).with_name("metrics.yaml")
# Names that begin so may differ between equal runs; no others may.
TIMED = ("time/", "phase/", "machine/")


class Metric(NamedTuple):
    """One metric, or a family of them."""

    name: str
    unit: str
    text: str
    bad: str = ""  # what a bad value looks like, and what to do
    healthy: tuple[float | None, float | None] | None = None  # the smallest and the largest good value
    charts: tuple[str, ...] = ("run",)  # where the dashboard draws it: run, machine, compare


@cache
def read_metrics(path: Path = _OWN) -> tuple[Metric, ...]:
    """The whole table, or that of an algorithm."""
    rows = yaml.safe_load(path.read_text("utf-8"))
    return tuple(Metric(name, **row) for name, row in rows.items())
