"""A wall clock of Python processes, shifted by the seconds in a file.

Every interpreter runs this file as it starts, workers included, once it is copied as `sitecustomize.py` into
a folder of PYTHONPATH. `time.time`, `time.time_ns` and `datetime.now` are shifted; sleeps, waits and
monotonic clocks are not, as when an administrator sets the clock. It runs first, so it imports nothing of
ours.
"""

from __future__ import annotations

import datetime
import os
import shutil
import time
from pathlib import Path
from typing import Any

_FILE = "MISSION_GYM_CLOCK"  # in the environment: the file with the seconds


def fake_wall_clock(folder: Path, seconds: Path) -> dict[str, str]:
    """Return the environment variables of a process with this clock; `folder` is created for it."""
    folder.mkdir(exist_ok=True)
    shutil.copy(__file__, folder / "sitecustomize.py")
    paths = filter(None, (str(folder), os.environ.get("PYTHONPATH")))
    return {"PYTHONPATH": os.pathsep.join(paths), _FILE: str(seconds)}


def set_shift(file: Path, seconds: float) -> None:
    """Set the clocks of all processes that read this file, atomically."""
    draft = file.with_name(f"{file.name}-new")
    draft.write_text(f"{seconds}\n")
    draft.replace(file)


def _install(path: str) -> None:
    real_ns = time.time_ns

    def shifted_ns() -> int:
        with open(path) as file:
            return real_ns() + int(float(file.read()) * 1e9)

    class Shifted(datetime.datetime):
        """`datetime` with the shifted clock."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(shifted_ns() / 1e9, tz)

    time.time_ns = shifted_ns
    time.time = lambda: shifted_ns() / 1e9
    datetime.datetime = Shifted  # type: ignore[misc]


if __name__ == "sitecustomize":
    _install(os.environ[_FILE])
