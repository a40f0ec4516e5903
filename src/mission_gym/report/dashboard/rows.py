"""Files of the runs folder: which may be read, whether they changed, and parts of a metrics stream.

Folders with links that leave the runs folder are refused, and so are folders with pipes, which would block.
Steps increase along the file, so a range is found by bisection over bytes, and a long range is sampled at
even distances: the cost of a chart does not depend on the length of the run. Partial and damaged rows are
skipped.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from mission_gym.store.tables import find_end

Row = dict[str, Any]
REFUSED = "it contains a symbolic link that leaves the runs folder, or a pipe"
_MAX_DEPTH = 4  # of the files that are read: checkpoints/step_000/meta.json
_CATCH_UP_BYTES = 1 << 22  # if more was added, the page loads the run again
_TAIL_BYTES = 1 << 18
_SEARCHED_BYTES = 1 << 22  # from the end, for the last event of a kind
_PROGRESS = b'{"event": "progress"'
_LONGEST_BYTES = 1 << 22  # of a line


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
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
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


class Part(NamedTuple):
    """Rows in the order of steps; `end` is the offset behind the last complete line of the file."""

    rows: list[Row]
    end: int
    is_sample: bool = False


def read_part(
    path: Path,
    low: int | None = None,
    high: int | None = None,
    *,
    num_rows: int = 1000,
    whole_bytes: int = 1 << 21,
) -> Part:
    """The progress rows from step `low` to step `high`; if they take more than `whole_bytes`, a sample of
    about `num_rows`, including the last."""
    try:
        with _open(path) as file:
            end = find_end(file.fileno())
            start = 0 if low is None else _find_step(file, low, end)
            stop = end if high is None else max(start, _find_step(file, high + 1, end))
            if stop - start <= whole_bytes:
                return Part(list(_read_rows(file, start, stop)), end)
            return Part(_sample(file, start, stop, num_rows), end, is_sample=True)
    except OSError:
        return Part([], 0)


def read_added(path: Path, offset: int) -> Part | None:
    """The rows from byte `offset` on; None if the file was cut meanwhile, as a resume does."""
    try:
        with _open(path) as file:
            end = find_end(file.fileno())
            if end == offset:
                return Part([], end)
            if end < offset or (offset and _byte_at(file, offset - 1) != b"\n"):
                return None
            if end - offset > _CATCH_UP_BYTES:
                return None  # too much to catch up
            return Part(list(_read_rows(file, offset, end)), end)
    except OSError:
        return Part([], 0) if offset == 0 else None


def find_last(path: Path, event: str) -> Row | None:
    """The last event of a kind, searched from the end of the file over some megabytes. The file is read and
    not mapped into memory, since a resume may cut it at any time."""
    head = b'{"event": ' + json.dumps(event).encode()
    try:
        with _open(path) as file:
            end = find_end(file.fileno())
            start = max(0, end - _SEARCHED_BYTES)
            file.seek(start)
            block = (b"" if start else b"\n") + file.read(end - start)
    except OSError:
        return None
    at = block.rfind(b"\n" + head)
    return _parse(block[at + 1 :].partition(b"\n")[0]) if at >= 0 else None


def read_first(path: Path) -> Row:
    """The first event, which describes the run; empty before it is written."""
    try:
        with _open(path) as file:
            return _parse(file.readline(_LONGEST_BYTES)) or {}
    except OSError:
        return {}


def make_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """A list for each numeric key of the rows, with None in rows without it."""
    columns: dict[str, list[float | None]] = {}
    for count, row in enumerate(rows):
        for key, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                columns.setdefault(key, [None] * count).append(value)
        for column in columns.values():
            if len(column) == count:
                column.append(None)
    return columns


def _open(path: Path) -> BinaryIO:
    """Open a regular file; OSError for anything else. A pipe without a writer would block."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a file")
    return os.fdopen(descriptor, "rb")


def _byte_at(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(1)


def _read_rows(file: BinaryIO, start: int, stop: int) -> Iterator[Row]:
    file.seek(start)
    for line in file.read(stop - start).splitlines():
        row = _parse(line) if line.startswith(_PROGRESS) else None
        if row is not None:
            yield row


def _sample(file: BinaryIO, start: int, stop: int, num_rows: int) -> list[Row]:
    """Rows at even distances, each once, including the last row of the range."""
    rows, read_to = [], start
    for number in range(num_rows):
        at = start + (stop - start) * number // num_rows
        if at < read_to:
            continue
        row, read_to = _next_row(file, at, stop, is_line=number == 0)
        if row is not None:
            rows.append(row)
    tail = list(_read_rows(file, max(read_to, stop - _TAIL_BYTES), stop)) if read_to < stop else []
    return rows + tail[-1:]


def _next_row(file: BinaryIO, at: int, stop: int, *, is_line: bool) -> tuple[Row | None, int]:
    """The first progress row at or behind byte `at`, and the offset behind it."""
    file.seek(at)
    if not is_line:
        file.readline(_LONGEST_BYTES)  # skip the rest of a line
    while file.tell() < stop:
        line = file.readline(_LONGEST_BYTES)
        row = _parse(line) if line.startswith(_PROGRESS) else None
        if row is not None:
            return row, file.tell()
    return None, stop


def _find_step(file: BinaryIO, step: int, end: int) -> int:
    """The offset of the first row with at least this step."""
    low, high = 0, end
    while high - low > (1 << 14):
        middle = (low + high) // 2
        row, _ = _next_row(file, middle, high, is_line=False)
        if row is not None and row.get("step", 0) < step:
            low = middle
        else:
            high = middle
    file.seek(low)
    if low:
        file.readline(_LONGEST_BYTES)
    at = file.tell()
    while line := file.readline(_LONGEST_BYTES):
        row = _parse(line) if line.startswith(_PROGRESS) else None
        if row is not None and row.get("step", 0) >= step:
            break
        at += len(line)
    return min(at, end)


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    step = row.get("step", 0)
    return row if isinstance(step, int) and not isinstance(step, bool) else None
