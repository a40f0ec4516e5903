"""Shared memory without a name, so that nothing can be left behind."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mission_gym.errors import ResourceRefused
from mission_gym.procs.machine import free_memory_bytes

if TYPE_CHECKING:
    from mission_gym.data import Array

_ALIGN = 64  # a cache line: two writers never share one


class Region:
    """Shared memory without a name. Every process must carve its arrays in the same order.

    size: 0 if it is not known yet; children may start, and `grow` must be called before the first array.
    """

    def __init__(self, size: int = 0, handle: int | str | None = None) -> None:
        self.size = 0
        self._is_new = handle is None
        self._owned: int | None = None
        if sys.platform == "win32":
            self.handle: int | str = handle or f"mission-gym-{os.urandom(16).hex()}"
        else:
            try:
                self._owned = self.handle = _make_memory_file() if handle is None else int(handle)
            except OSError as error:
                raise ResourceRefused(
                    f"the system refuses shared memory ({error}); free space in {tempfile.gettempdir()}, or "
                    "name another folder in TMPDIR"
                ) from error
        if size:
            self.grow(size)

    def grow(self, size: int) -> None:
        """Allocate `size` bytes."""
        self.size = size
        try:
            if sys.platform == "win32":
                self._memory = mmap.mmap(-1, size, tagname=str(self.handle))
                return
            if self._is_new:
                _fill_memory_file(int(self.handle), size)
            self._memory = mmap.mmap(int(self.handle), size)
        except OSError as error:
            self.close()
            raise ResourceRefused(
                f"{size / 1e6:.0f} MB of shared memory are not available ({error}); free memory, or use "
                "fewer environments or steps per environment [--n-envs, --n-steps-per-env]"
            ) from error

    def carver(self) -> Carver:
        """Return a carver that starts at the beginning."""
        return Carver(self._memory)

    def close(self) -> None:
        """Close the descriptor; the memory is freed with its last array."""
        if self._owned is not None:
            os.close(self._owned)
            self._owned = None


class Carver:
    """Allocates zeroed arrays one after the other in a buffer; without a buffer it only counts bytes."""

    def __init__(self, buffer: mmap.mmap | None = None) -> None:
        self.size = 0
        self._buffer = buffer

    def __call__(self, shape: int | Sequence[int], dtype: Any) -> Array:
        import numpy as np  # here, because `doctor` must work without NumPy

        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        count = int(np.prod(dims, dtype=np.int64))
        offset = self.size
        self.size += -(-count * kind.itemsize // _ALIGN) * _ALIGN
        if self._buffer is None:
            return np.broadcast_to(np.zeros((), kind), dims)
        return np.frombuffer(self._buffer, kind, count, offset).reshape(dims)


def _make_memory_file() -> int:
    if hasattr(os, "memfd_create"):
        with suppress(OSError):  # some sandboxes refuse it
            return os.memfd_create("mission-gym")
    fd, path = tempfile.mkstemp(prefix="mission-gym-")
    os.unlink(path)
    return fd


def _fill_memory_file(fd: int, size: int) -> None:
    free = free_memory_bytes()
    if size > free:  # the system would kill us instead of refusing
        raise OSError(errno.ENOMEM, f"{free / 1e6:.0f} MB are free")
    os.ftruncate(fd, size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)  # fails now instead of with a bus error later
