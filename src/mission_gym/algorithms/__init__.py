"""The table of algorithms. An algorithm is a folder with a record `ALGORITHM`, and a line here.

A record is loaded when it is used.
"""

from __future__ import annotations

from importlib import import_module

from mission_gym.learner.contract import Algorithm
from mission_gym.store.metrics import Metric, read_metrics

ALGORITHMS = {
    "ppo": "mission_gym.algorithms.ppo",
    "dqn": "mission_gym.algorithms.dqn",
    "sac": "mission_gym.algorithms.sac",
}


def load_algorithm(name: str) -> Algorithm:
    """The record of an algorithm."""
    record: Algorithm = import_module(ALGORITHMS[name]).ALGORITHM
    return record


def list_metrics() -> list[Metric]:
    """The rows of all metric tables, each name once: those of every run, then those of the algorithms."""
    tables = [read_metrics(), *(load_algorithm(name).metrics for name in ALGORITHMS)]
    found: dict[str, Metric] = {}
    for metric in (metric for table in tables for metric in table):
        found.setdefault(metric.name, metric)
    return list(found.values())
