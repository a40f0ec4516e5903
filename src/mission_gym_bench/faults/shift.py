"""A wall clock that is shifted by what a file says, in Python processes alone.

Copied as `sitecustomize.py` into a folder of PYTHONPATH, this file is run by each interpreter as it starts,
workers included. `time.time`, `time.time_ns` and `datetime.now` are shifted; sleeps, waits and the steady
clocks are not, as when an administrator sets the clock. It imports nothing of ours: it comes first.
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
    """The environment of a process with such a clock; `folder` is made for it."""
    folder.mkdir(exist_ok=True)
    shutil.copy(__file__, folder / "sitecustomize.py")
    paths = filter(None, (str(folder), os.environ.get("PYTHONPATH")))
    return {"PYTHONPATH": os.pathsep.join(paths), _FILE: str(seconds)}


def set_shift(file: Path, seconds: float) -> None:
    """Set the clocks of all that read this file; at once, never half."""
    draft = file.with_name(f"{file.name}-new")
    draft.write_text(f"{seconds}\n")
    draft.replace(file)


def _install(path: str) -> None:
    real_ns = time.time_ns

    def shifted_ns() -> int:
        with open(path) as file:
            return real_ns() + int(float(file.read()) * 1e9)

    class Shifted(datetime.datetime):
        """As `datetime`, by the shifted clock."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(shifted_ns() / 1e9, tz)

    time.time_ns = shifted_ns
    time.time = lambda: shifted_ns() / 1e9
    datetime.datetime = Shifted  # type: ignore[misc]


if __name__ == "sitecustomize":
    _install(os.environ[_FILE])
