"""How the process of a job tells who started it where its run lies, and how it ended.

The starter names files in the environment. An exit code is also for those who did not start the process, and
so can't wait for it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from mission_gym.errors import DiskError, RunStateError
from mission_gym.store.checked import Count, Str, read_checked
from mission_gym.store.files import write_json
from mission_gym.store.variables import END_FILE, RUN_FILE

_PLACE = TypeAdapter(dict[Str, Str])
_END = TypeAdapter(dict[Str, Count])


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


def announce_end(code: int) -> None:
    """Write the exit code where the starter of this process wants it; one that the disk refuses is lost."""
    place = os.environ.get(END_FILE)
    if place is not None:
        with suppress(DiskError):
            write_json(Path(place), {"pid": os.getpid(), "code": code})


def read_code(place: Path, pid: int | None) -> int | None:
    """The exit code that this process announced in a file; None for one that was killed."""
    try:
        end = read_checked(place, _END)
        return end["code"] if end["pid"] == pid else None
    except (RunStateError, KeyError):
        return None
