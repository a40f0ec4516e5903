"""What may be read: folders without links that leave the runs folder, and without pipes, which would be
waited for."""

from __future__ import annotations

import os
from pathlib import Path

REFUSED = "it holds a link that leads out of the runs folder, or a pipe"
_MAX_DEPTH = 4  # nothing that is read lies deeper: checkpoints/step_000/meta.json


def is_contained(path: Path, *folders: str) -> bool:
    """Whether a folder of the runs folder holds none, at its top and anywhere below these of its folders."""
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
            if not _is_below(target, root) or (os.path.isdir(target) and depth):
                return False
        if entry.is_dir(follow_symlinks=False):
            if depth and not _is_clean(entry.path, root, depth - 1):
                return False
        elif not entry.is_file() and os.path.exists(entry.path):
            return False
    return True


def _is_below(path: str, root: str) -> bool:
    return os.path.commonpath((path, root)) == root
