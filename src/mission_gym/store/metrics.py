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


class MetricAlarm(NamedTuple):
    """A warning that a run raises once, when the metric is above a limit."""

    above: float
    text: str  # with values of the row in braces: {train/loss:.3g}


class Metric(NamedTuple):
    """One metric, or a family of them."""

    name: str
    unit: str
    text: str
    bad: str = ""  # what a bad value looks like, and what to do
    healthy: tuple[float | None, float | None] | None = (
        None  # the least and the largest value that is not bad
    )
    alarm: MetricAlarm | None = None


@cache
def read_metrics(path: Path = _OWN) -> tuple[Metric, ...]:
    """The whole table, or that of an algorithm."""
    rows = yaml.safe_load(path.read_text("utf-8"))
    alarms = {name: MetricAlarm(**row.pop("alarm")) for name, row in rows.items() if "alarm" in row}
    return tuple(Metric(name, **row, alarm=alarms.get(name)) for name, row in rows.items())
