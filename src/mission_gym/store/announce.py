"""How a run tells who started it where it lies: the starter names a file in the environment."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import TypeAdapter

from mission_gym.errors import RunStateError
from mission_gym.store.checked import Str, read_checked
from mission_gym.store.files import write_json

RUN_FILE = "MISSION_GYM_RUN_FILE"
_PLACE = TypeAdapter(dict[Str, Str])


def announce_run(path: Path) -> None:
    """Write a new run's path where the starter of this process wants it. What this process starts in turn is
    not meant."""
    place = os.environ.pop(RUN_FILE, None)
    if place is not None:
        write_json(Path(place), {"run": str(path)})


def read_announced(place: Path) -> Path | None:
    """The run that was announced in a file; None before that, or where the file is damaged."""
    try:
        return Path(read_checked(place, _PLACE)["run"])
    except (RunStateError, KeyError):
        return None
