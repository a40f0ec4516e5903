"""Arrays to tensors on a device and back.

Copies to CUDA go through pinned memory, so that the host does not wait: torch reuses such memory only after
the copies from it are done.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mission_gym.data import Array

_CHUNK_BYTES = 4 << 20  # of pinned memory, which the whole system shares


def send(array: Array, device: torch.device) -> Tensor:
    """The array on the device; the host does not wait for the copy."""
    if device.type != "cuda":
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)
    stored, back = _order_by_memory(torch.from_numpy(array))
    return stored.contiguous().pin_memory().to(device, non_blocking=True).permute(back)


def fetch(tensor: Tensor) -> Array:
    """The tensor on the host. While it waits for CUDA, the thread sleeps and leaves its core to others."""
    if tensor.device.type != "cuda":
        return tensor.cpu().numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(tensor.device))
    done.synchronize()
    return host.numpy().copy()


def _order_by_memory(source: Tensor) -> tuple[Tensor, list[int]]:
    """A view with its axes, after that of the rows, in memory order, and the permutation that leads back: the
    host copies contiguous memory, and the device transposes."""
    strides = source.stride()
    order = [0, *sorted(range(1, source.dim()), key=lambda axis: -strides[axis])][: source.dim()]
    return source.permute(order), np.argsort(order).tolist()


class Resident:
    """A tensor that arrays [N, ...] are copied into. It moves only to grow; N may vary."""

    def __init__(self, device: torch.device) -> None:
        self._tensor = torch.empty(0, device=device)

    def load(self, array: Array) -> Tensor:
        """Copy an array of any strides; returns the rows that hold it."""
        source = torch.from_numpy(array)
        num = len(source)
        fits = source.shape[1:] == self._tensor.shape[1:] and source.dtype == self._tensor.dtype
        if not fits or num > len(self._tensor):
            shape = (num + num // 8, *source.shape[1:])  # spare rows for the next call
            self._tensor = torch.empty(shape, dtype=source.dtype, device=self._tensor.device)
        rows = self._tensor[:num]
        if rows.device.type != "cuda":
            return rows.copy_(source)
        stored, back = _order_by_memory(source)
        row_bytes = max(1, math.prod(source.shape[1:]) * source.element_size())
        chunk = max(1, _CHUNK_BYTES // row_bytes)
        for start in range(0, num, chunk):
            part = slice(start, start + chunk)
            pinned = torch.empty(stored[part].shape, dtype=stored.dtype, pin_memory=True).copy_(stored[part])
            if back != sorted(back):
                pinned = pinned.to(rows.device, non_blocking=True).permute(back)
            rows[part].copy_(pinned, non_blocking=True)
        return rows


class ResidentImages:
    """Images or sequences [N, C, ...] on a device, with the strides of [N, ..., C], which convolutions read
    best. Frames are stacked when rows are taken."""

    def __init__(self, device: torch.device) -> None:
        self._stored, self._indexed = Resident(device), Resident(device)

    def load(self, images: Array, frame_index: Array | None = None) -> None:
        """Copy them to the device. frame_index: [N, k] if `images` are frames."""
        self._rows = self._stored.load(np.moveaxis(images, 1, -1))
        self._index = None if frame_index is None else self._indexed.load(frame_index)

    def take(self, rows: slice | Tensor) -> Tensor:
        """Some of the N."""
        if self._index is None:
            return _pick(self._rows, rows).movedim(-1, 1)
        frames = [self._rows.index_select(0, each) for each in _pick(self._index, rows).unbind(1)]
        return torch.cat(frames, -1).movedim(-1, 1)

    def addresses(self) -> tuple[int, ...]:
        """The addresses of the tensors that `take` reads."""
        return tuple(each.data_ptr() for each in (self._rows, self._index) if each is not None)


def _pick(source: Tensor, rows: slice | Tensor) -> Tensor:
    return source[rows] if isinstance(rows, slice) else source.index_select(0, rows)
