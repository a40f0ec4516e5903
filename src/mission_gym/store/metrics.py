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


class MetricAlarm(NamedTuple):
    """A warning that a run raises once, when the metric is above a limit."""

    above: float
    text: str  # with values of the row in braces: {train/loss:.3g}


class Metric(NamedTuple):
    """One metric, or a family whose name ends in `*`."""

    name: str
    unit: str
    text: str
    bad: str = ""  # signs of a bad value, and what to do
    healthy: tuple[float | None, float | None] | None = None  # smallest and largest healthy value
    alarm: MetricAlarm | None = None
    charts: tuple[str, ...] = ("run",)  # where the dashboard draws it: run, machine, compare


@cache
def read_metrics(path: Path = _OWN) -> tuple[Metric, ...]:
    """Read the table of every run, or that of an algorithm."""
    rows = yaml.safe_load(path.read_text("utf-8"))
    alarms = {name: MetricAlarm(**row.pop("alarm")) for name, row in rows.items() if "alarm" in row}
    return tuple(Metric(name, **row, alarm=alarms.get(name)) for name, row in rows.items())
