"""Finds the line of the user's code in a traceback or in the stack of a process: `shop.py:41`."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path, PurePath

import mission_gym

_LINE = re.compile(r'File "(.+)", line (\d+)')
# Code of these folders is not the user's.
_OTHERS = (
    Path(mission_gym.__file__).parent,
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def find_line(error: BaseException) -> str:
    """Return the line of the user's code that led to an exception, empty if it has no traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return _choose((frame.filename, frame.lineno or 0) for frame in reversed(frames))


def find_line_in_stack(stack: str) -> str:
    """Return the line of the user's code in a stack that faulthandler printed, the newest call first."""
    return _choose((file, int(line)) for file, line in _LINE.findall(stack))


def _choose(lines: Iterable[tuple[str, int]]) -> str:
    """Return the innermost line in the user's code, else the innermost line. lines: the innermost first."""
    found = list(lines)
    own = [line for line in found if not _is_of_others(line[0])]
    if not found:
        return ""
    file, number = (own or found)[0]
    return f"{PurePath(file).name}:{number}"


def _is_of_others(file: str) -> bool:
    return file.startswith("<frozen ") or any(Path(file).is_relative_to(folder) for folder in _OTHERS)
