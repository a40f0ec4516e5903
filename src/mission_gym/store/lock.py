"""File locks of the operating system, which end with the process that holds them.

The file keeps the pid of its last holder. It is never removed: two processes could otherwise lock two files
of the same name.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mission_gym.errors import RunStateError
from mission_gym.store.files import disk_errors

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int, *, shared: bool) -> bool:
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # a locked byte can't be read, so lock one behind the pid
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


@contextmanager
def hold(path: Path, *, wait_s: float) -> Iterator[int]:
    """Hold the lock file during the block and yield its descriptor; RunStateError with the holder's pid after
    `wait_s`."""
    with disk_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with disk_errors(path):
            deadline = time.monotonic() + wait_s
            while not _try_lock(descriptor, shared=False):
                if time.monotonic() >= deadline:
                    pid = path.read_text() or "unknown"
                    raise RunStateError(
                        f"{path.parent} is in use by process {pid}; only one process may write it; "
                        f"wait for that one or stop it [{path.name}]"
                    )
                time.sleep(0.005)
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, str(os.getpid()).encode())
        yield descriptor
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)
