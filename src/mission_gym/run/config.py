"""Configs of runs: the schema with the sections and names of the tables in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mission_gym.algorithms import ALGORITHMS, load_algorithm
from mission_gym.backends import BACKENDS, load_backend
from mission_gym.config import layers
from mission_gym.config.fields import Schema
from mission_gym.config.layers import Resolved


@cache
def schema() -> Schema:
    """Every section and field that a run may have."""
    sections = {name: load_algorithm(name).section for name in ALGORITHMS}
    return Schema(sections, {name: load_backend(name).text for name in BACKENDS})


def resolve(
    env_id: str | None,
    flags: Mapping[str, Any],
    *,
    sets: Sequence[str] = (),
    config_file: Path | None = None,
    preset: str | None = None,
    base: Resolved | None = None,
) -> Resolved:
    """`layers.resolve` with the tables' schema."""
    return layers.resolve(
        schema(), env_id, flags, sets=sets, config_file=config_file, preset=preset, base=base
    )


def read_config(path: Path) -> Resolved:
    """`layers.read_config` with the tables' schema."""
    return layers.read_config(schema(), path)
