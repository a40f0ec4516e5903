"""Memory that processes share, without a name that could be left behind."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mission_gym.errors import WorkerError
from mission_gym.procs.machine import free_memory_bytes

if TYPE_CHECKING:
    from mission_gym.data import Array

_ALIGN = 64  # a cache line: two writers never share one


class Region:
    """Shared memory without a name: nothing to unlink. Arrays are carved in the same order everywhere."""

    def __init__(self, size: int, handle: int | str | None = None) -> None:
        self.size = max(size, 1)
        self._owned: int | None = None
        try:
            if sys.platform == "win32":
                self.handle: int | str = handle or f"mission-gym-{uuid.uuid4().hex}"
                self._memory = mmap.mmap(-1, self.size, tagname=str(self.handle))
                return
            self.handle = _make_memory_file(self.size) if handle is None else int(handle)
            self._owned = self.handle
            self._memory = mmap.mmap(self.handle, self.size)
        except OSError as error:
            self.close()
            raise WorkerError(
                f"{size / 1e6:.0f} MB of shared memory can't be had ({error}); free memory, or use fewer "
                "environments or steps per environment [--n-envs, --n-steps-per-env]"
            ) from error

    def carver(self) -> Carver:
        """Carve from the beginning."""
        return Carver(self._memory)

    def close(self) -> None:
        """Give the descriptor back; the memory goes with its last array."""
        if self._owned is not None:
            os.close(self._owned)
            self._owned = None


class Carver:
    """Gives out zeroed arrays of a buffer one after the other; without a buffer it only counts."""

    def __init__(self, buffer: mmap.mmap | None = None) -> None:
        self.size = 0
        self._buffer = buffer

    def __call__(self, shape: int | Sequence[int], dtype: Any) -> Array:
        import numpy as np  # here, so that the machine's doctor needs none to get at this room

        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        count = int(np.prod(dims, dtype=np.int64))
        offset = self.size
        self.size += -(-count * kind.itemsize // _ALIGN) * _ALIGN
        if self._buffer is None:
            return np.broadcast_to(np.zeros((), kind), dims)
        return np.frombuffer(self._buffer, kind, count, offset).reshape(dims)


def _make_memory_file(size: int) -> int:
    free = free_memory_bytes()
    if size > free:  # the system would kill us half-way rather than refuse
        raise OSError(errno.ENOMEM, f"{free / 1e6:.0f} MB are free")
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("mission-gym")
    else:
        fd, path = tempfile.mkstemp(prefix="mission-gym-")
        os.unlink(path)
    try:
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)  # refused now rather than a bus error later
    except OSError:
        os.close(fd)
        raise
    return fd
