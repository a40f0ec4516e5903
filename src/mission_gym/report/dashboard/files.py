"""Which files of the runs folder may be read, and whether they changed.

Folders with links that leave the runs folder are refused, and so are folders with pipes, which would block.
"""

from __future__ import annotations

import os
import stat as modes
from pathlib import Path
from typing import NamedTuple

REFUSED = "it contains a symbolic link that leaves the runs folder, or a pipe"
_MAX_DEPTH = 4  # of the files that are read: checkpoints/step_000/meta.json


class Stamp(NamedTuple):
    """The time and size of a file, which show whether it changed; zeros if it does not exist."""

    mtime_ns: int = 0
    size: int = 0


def stamp(path: str | os.PathLike[str]) -> Stamp:
    """The present stamp of a file or folder."""
    try:
        status = os.stat(path)
    except OSError:
        return Stamp()
    is_plain = modes.S_ISREG(status.st_mode) or modes.S_ISDIR(status.st_mode)
    return Stamp(status.st_mtime_ns, status.st_size) if is_plain else Stamp()


def is_contained(path: Path, *folders: str) -> bool:
    """Whether a folder of the runs folder may be read: its own files, and all files below these
    subfolders."""
    own, root = os.fspath(path), os.path.realpath(path.parent)
    try:
        if os.path.islink(own) or not os.path.isdir(own):
            return False
        return _is_clean(own, root, 0) and all(
            _is_clean(f"{own}{os.sep}{name}", root, _MAX_DEPTH) for name in folders
        )
    except OSError:
        return False


def _is_clean(folder: str, root: str, depth: int) -> bool:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return True
    for entry in entries:
        if entry.is_symlink():
            target = os.path.realpath(entry.path)
            is_inside = os.path.commonpath((target, root)) == root
            if not is_inside or (os.path.isdir(target) and depth):
                return False
        if entry.is_dir(follow_symlinks=False):
            if depth and not _is_clean(entry.path, root, depth - 1):
                return False
        elif not entry.is_file() and os.path.exists(entry.path):
            return False
    return True
