"""The table of algorithms: a name, and the folder whose record says everything that others ask of it.

A record is loaded when it is used. One more algorithm is one more folder and one more line.
"""

from __future__ import annotations

from importlib import import_module

from mission_gym.learner.contract import Algorithm

ALGORITHMS = {"ppo": "mission_gym.algorithms.ppo", "dqn": "mission_gym.algorithms.dqn"}


def load_algorithm(name: str) -> Algorithm:
    """The record of an algorithm."""
    record: Algorithm = import_module(ALGORITHMS[name]).ALGORITHM
    return record
