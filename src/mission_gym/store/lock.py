"""File locks of the operating system, which end with the process that holds them.

The file names its last holder: pid, start time, host, boot and pid namespace. A pid alone may belong to
another process by now. Only its owner may open it, since any reader could lock it.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mission_gym.errors import RunStateError
from mission_gym.store.files import disk_errors, open_plain

_MAX_BYTES = 4096

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int, *, shared: bool) -> bool:
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # a locked byte can't be read, so lock one behind the text
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
else:
    import fcntl

    def _try_lock(descriptor: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Holder(NamedTuple):
    """The process that a lock file names."""

    pid: int
    start: str  # its start time, in the units of the system
    place: str  # host, boot and pid namespace
    note: str = ""

    @property
    def is_here(self) -> bool:
        """Whether its pid has a meaning for this process."""
        return self.place == _read_place()

    @property
    def is_alive(self) -> bool:
        """Whether this very process lives here."""
        return self.is_here and self.start == _read_start(self.pid) != ""


@contextmanager
def hold(path: Path, *, wait_s: float, remove: bool = False) -> Iterator[int]:
    """Hold the lock file during the block and yield its descriptor; RunStateError with the holder's pid after
    `wait_s`. remove: delete the file at the end."""
    with disk_errors(path):
        descriptor = _open(path)
    try:
        with disk_errors(path):
            deadline = time.monotonic() + wait_s
            while True:
                if _try_lock(descriptor, shared=False):
                    if _is_at(descriptor, path):
                        break
                    removed, descriptor = descriptor, _open(path)  # by its last holder
                    os.close(removed)
                    continue
                if time.monotonic() >= deadline:
                    holder = read_holder(path)
                    raise RunStateError(
                        f"{path.parent} is in use by process {holder.pid if holder else 'unknown'}; only one "
                        f"process may write it; wait for that one or stop it [{path.name}]"
                    )
                time.sleep(0.005)
            if os.fstat(descriptor).st_mode & 0o077 and hasattr(os, "fchmod"):
                with suppress(OSError):  # another user's file
                    os.fchmod(descriptor, 0o600)
            sign(descriptor)
        yield descriptor
        if remove:
            with suppress(OSError):  # Windows keeps an open file
                path.unlink()
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return open_plain(path, os.O_RDWR | os.O_CREAT, 0o600)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the path still names this open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def sign(descriptor: int, note: str = "") -> None:
    """Name this process in a lock file that it holds."""
    pid = os.getpid()
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, f"{pid} {_read_start(pid)} {_read_place()} {note}".strip().encode())


def read_holder(path: Path) -> Holder | None:
    """Return the last holder of a lock file; None if it names none."""
    try:
        with open(open_plain(path, os.O_RDONLY), "rb") as file:
            words = file.read(_MAX_BYTES).decode("utf-8", "replace").split()
    except OSError:
        return None
    return Holder(int(words[0]), *words[1:]) if len(words) in (3, 4) and words[0].isdecimal() else None


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock file."""
    try:
        descriptor = open_plain(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunStateError(f"can't read {path}: {error.strerror or error}") from error
    try:
        return not _try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


@cache
def _read_place() -> str:
    boot = space = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    return f"{platform.node() or 'machine'}/{boot}/{space}".replace(" ", "-")


def _read_start(pid: int) -> str:
    """Return the start time of a process; empty if it has ended."""
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in "ZX" else fields[19]
    import psutil

    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""
