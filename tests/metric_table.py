"""Which row of the table of metrics a name belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from mission_gym.store.metrics import Metric, read_metrics


def find_metric(name: str, own: Iterable[Metric] = ()) -> Metric | None:
    """The metric, None if it is not in the table; `own`: an algorithm's."""
    return next((metric for metric in (*read_metrics(), *own) if fnmatchcase(name, metric.name)), None)
