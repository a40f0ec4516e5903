"""When a file changed, and its size: what tells whether it has to be read again."""

from __future__ import annotations

import os
import stat as modes
from typing import NamedTuple


class Stamp(NamedTuple):
    """Zeros where there is no such file or folder."""

    mtime_ns: int = 0
    size: int = 0


def stamp(path: str | os.PathLike[str]) -> Stamp:
    """The stamp of a file or folder now."""
    try:
        status = os.stat(path)
    except OSError:
        return Stamp()
    is_plain = modes.S_ISREG(status.st_mode) or modes.S_ISDIR(status.st_mode)
    return Stamp(status.st_mtime_ns, status.st_size) if is_plain else Stamp()
