"""The table of algorithms. An algorithm is a folder with a record `ALGORITHM`, and a line here.

A record is loaded when it is used.
"""

from __future__ import annotations

from importlib import import_module

from mission_gym.learner.contract import Algorithm

ALGORITHMS = {
    "ppo": "mission_gym.algorithms.ppo",
    "dqn": "mission_gym.algorithms.dqn",
}


def load_algorithm(name: str) -> Algorithm:
    """The record of an algorithm."""
    record: Algorithm = import_module(ALGORITHMS[name]).ALGORITHM
    return record
