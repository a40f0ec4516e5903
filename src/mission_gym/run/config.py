"""Configs of runs: the schema with the sections and names of the tables in it."""

from __future__ import annotations

from functools import cache, partial

from mission_gym.algorithms import ALGORITHMS, load_algorithm
from mission_gym.config import layers
from mission_gym.config.fields import Schema
from mission_gym.store.sinks import SINKS
from mission_gym.vector.backends import BACKENDS, load_backend


@cache
def schema() -> Schema:
    """Every section and field that a run may have."""
    sections = {name: load_algorithm(name).section for name in ALGORITHMS}
    trackers = [name for name, row in SINKS.items() if row.switch == "run.track"]
    return Schema(sections, {name: load_backend(name).text for name in BACKENDS}, trackers)


resolve = partial(layers.resolve, schema())
read_config = partial(layers.read_config, schema())
