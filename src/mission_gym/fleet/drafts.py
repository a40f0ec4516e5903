"""What a job file asks for: variants (jobs with one choice of their grid), and drafts (their runs)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mission_gym.config.plain_yaml import Key
from mission_gym.store.groups import Point

ENV_ID = "env.env_id="  # how `branch --set` names another environment


@dataclass(frozen=True, slots=True)
class Draft:
    """One run that a file asks for."""

    name: str
    variant: str
    values: dict[str, Any]  # by the names of flags
    seed: int | None = None
    parent: str | None = None
    point: Point = "best"
    priority: int = 0
    retries: int = 1


@dataclass(frozen=True, slots=True)
class JobFile:
    """What a file asks for."""

    name: str
    drafts: tuple[Draft, ...]
    runs_dir: str | None = None


@dataclass
class Variant:
    """A job of the file with one choice of its grid, and the seeds that it is run with."""

    name: str
    key: Key  # where it stands in the file
    values: dict[str, Any]
    seeds: tuple[int | None, ...]
    branch: str | None
    priority: int
    retries: int


def name_variant(job: object, choice: Mapping[str, Any]) -> str:
    """The name of a job with one choice of its grid."""
    return "-".join([str(job), *(_tell_choice(*item) for item in choice.items())])


def _tell_choice(flag: str, value: Any) -> str:
    text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^A-Za-z0-9._]+", "-", f"{flag}-{text}").strip("-")


def name_member(variant: str, seed: int | None) -> str:
    """The name of a variant's run with one of its seeds."""
    return variant if seed is None else f"{variant}-s{seed}"


def list_sets(values: Mapping[str, Any]) -> list[Any]:
    """What `set` holds: a text, or a list of them."""
    given = values.get("set")
    return given if isinstance(given, list) else [] if given is None else [given]


def inherit(above: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a branch over those of its parent, as its run will have them."""
    sets = [*list_sets(above), *list_sets(values)]
    found = {**above, **values} | ({"set": sets} if sets else {})
    if any(str(text).startswith(ENV_ID) for text in sets):
        found.pop("env", None)  # another environment than the parent's
    return found
