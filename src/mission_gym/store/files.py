"""Atomic, durable files: a reader sees the old content or the new, even if the writer is killed.

Every write of this package goes through here or through `disk_errors`. A full or read-only disk is therefore
always a DiskError with the path and the cause. JSON files are validated with pydantic, so values have the
types that their readers expect.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError

from mission_gym.errors import DiskError, RunStateError

TEMPORARY = ".tmp-"
_TAIL_BYTES = 1 << 16
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit on file sizes",
    errno.EACCES: "check the permissions",
    errno.EPERM: "check the permissions",
    errno.EROFS: "choose a folder that can be written",
}
_T = TypeVar("_T")
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Str = InstanceOf[str]  # allows text that is not valid Unicode, such as the name of a folder


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError raised in the block into a DiskError about `path`."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check the disk")
        raise DiskError(f"can't write {path}: {error.strerror or error}; {remedy}") from error


def open_plain(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a regular file and return its descriptor; OSError for a symbolic link, a pipe or a device.

    Files of runs and groups that are not replaced as a whole are opened with it: the folder may be a
    stranger's, and its links may lead to any file of the user.
    """
    plain = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not block
    try:
        descriptor = os.open(path, flags | plain, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO) or path.is_symlink():
            raise _refuse(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refuse(path)
    return descriptor


def _refuse(path: Path) -> OSError:
    return OSError(errno.ELOOP, f"it is a link, a pipe or a device, not a file ({path.name})")


def check_plain(folder: Path, inner: Sequence[str] = ()) -> None:
    """Refuse links and special files in a folder and in its folders `inner`; RunStateError. To be called
    before anything is written there."""
    for each in (folder, *(folder / name for name in inner)):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(each) as entries:
            for entry in entries:
                if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
                    raise RunStateError(
                        f"{entry.path} is a link, a pipe or a device; nothing is written to {folder.name}, "
                        "since a link may lead to any of your files; remove it, or put the file in its place"
                    )


def write_synced(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file; if `durable`, wait until it is on the disk."""
    with open(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the directory entries of `folder` are on the disk."""
    if sys.platform == "win32":  # folders can't be opened there; a rename is durable on NTFS
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Replace the content of `path` in one step; unless `durable`, a power cut may restore the old one."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    with disk_errors(path):
        try:
            write_synced(temporary, data.encode() if isinstance(data, str) else data, durable=durable)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        if durable:
            sync_folder(path.parent)


def remove_leftovers(folder: Path, names: Sequence[str]) -> None:
    """Remove temporary files left by killed writers, if they belong to files with these names (globs)."""
    for path in folder.glob(f"{TEMPORARY}*"):
        import psutil

        name, _, pid = path.name.removeprefix(TEMPORARY).rpartition("-")
        if not any(fnmatch(name, own) for own in names) or path.is_symlink() or folder.is_symlink():
            continue
        # Containers reuse small pids, so a dead writer may have had our own pid.
        if pid.isdigit() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid))):
            with disk_errors(path):
                path.unlink(missing_ok=True)


def to_json(value: Any) -> Any:
    """Convert `value` to strict JSON: NumPy scalars become Python numbers, NaN and infinity become None."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write `value` atomically as strict JSON."""
    write_atomic(path, json.dumps(to_json(value), indent=2, allow_nan=False) + "\n", durable=durable)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a regular file; OSError, also for one that is larger."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise _refuse(path)
        if facts.st_size > max_bytes:
            size, most = facts.st_size >> 20, max_bytes >> 20
            raise OSError(errno.EFBIG, f"it has {size} MiB, and such files have at most {most} MiB")
        return file.read(max_bytes)


def read_json(path: Path, max_bytes: int = 16 << 20) -> Any:
    """Read a JSON file; RunStateError if it is missing, unreadable, damaged or larger."""
    try:
        return json.loads(read_bounded(path, max_bytes))
    except OSError as error:
        raise RunStateError(f"can't read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RunStateError(f"{path} is truncated or altered: {error}") from error


def read_tail(path: Path) -> list[str]:
    """Return the last whole lines of a text file, or an empty list if it can't be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return lines[1:] if size > _TAIL_BYTES else lines


def make_private(folder: Path) -> None:
    """Make a folder of the user's state, with its parents; only the user may open ours."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in (folder, *folder.parents):
        if "mission-gym" not in each.parts:
            break
        if each.stat().st_mode & 0o077:
            each.chmod(0o700)


def user_folder(kind: Literal["cache", "state"]) -> Path:
    """Return our per-user folder: below XDG_CACHE_HOME or XDG_STATE_HOME, or the system's own place.
    DiskError for a user without a home, as in some containers."""
    given = os.environ.get(f"XDG_{kind.upper()}_HOME")
    if sys.platform == "win32":
        given = given or os.environ.get("LOCALAPPDATA")
    own = {"cache": ".cache", "state": ".local/state"}
    mac = {"cache": "Library/Caches", "state": "Library/Application Support"}
    try:
        return Path(given or Path.home() / (mac if sys.platform == "darwin" else own)[kind]) / "mission-gym"
    except RuntimeError as error:
        raise DiskError(
            f"there is no folder for our {kind}: this user has no home; set HOME or XDG_{kind.upper()}_HOME"
        ) from error


class Record(BaseModel):
    """A file in which only the declared keys are validated; None counts as absent."""

    model_config = ConfigDict(extra="allow")


def read_validated(path: Path, adapter: TypeAdapter[_T], max_bytes: int = 16 << 20) -> _T:
    """Read a JSON file of this type; RunStateError names the file and the wrong key."""
    return validate(path, read_json(path, max_bytes), adapter)


def validate(path: Path, content: Any, adapter: TypeAdapter[_T]) -> _T:
    """Validate content that was read from `path`."""
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        rule = first["msg"].removeprefix("Input ").partition(" or instance of ")[0]
        what = f"{key or 'its content'} {rule}"
        raise RunStateError(f"{path} is damaged: {what}; restore it from a copy") from error
