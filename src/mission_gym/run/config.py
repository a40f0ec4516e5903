"""Configs of runs: the schema with the sections and names of the tables in it."""

from __future__ import annotations

from functools import cache, partial

from mission_gym.algorithms import ALGORITHMS, load_algorithm
from mission_gym.config import layers
from mission_gym.config.fields import Schema
from mission_gym.store.sinks import list_trackers
from mission_gym.vector.backends import BACKENDS, load_backend


@cache
def schema() -> Schema:
    """Every section and field that a run may have."""
    sections = {name: load_algorithm(name).section for name in ALGORITHMS}
    return Schema(sections, {name: load_backend(name).text for name in BACKENDS}, list_trackers())


resolve = partial(layers.resolve, schema())
read_config = partial(layers.read_config, schema())
