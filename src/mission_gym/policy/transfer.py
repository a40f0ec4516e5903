"""Arrays to tensors on a device and back. To CUDA they go through pinned memory, so that nobody waits: torch
reuses such memory only when the copies from it are done."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mission_gym.data import Array

_CHUNK_BYTES = 4 << 20  # of pinned memory, which is taken from everybody


def send(array: Array, device: torch.device) -> Tensor:
    """The array on the device; nobody waits for the copy."""
    if device.type != "cuda":
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)
    stored, back = _order_by_memory(torch.from_numpy(array))
    return stored.contiguous().pin_memory().to(device, non_blocking=True).permute(back)


def fetch(tensor: Tensor) -> Array:
    """The tensor on the host. A thread that waits for CUDA sleeps: its core is for others."""
    if tensor.device.type != "cuda":
        return tensor.cpu().numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(tensor.device))
    done.synchronize()
    return host.numpy().copy()


def _order_by_memory(source: Tensor) -> tuple[Tensor, list[int]]:
    """A view whose axes have the order of memory, behind that of the rows, and the order that leads back: the
    host copies what lies side by side, and the device transposes."""
    strides = source.stride()
    order = [0, *sorted(range(1, source.dim()), key=lambda axis: -strides[axis])][: source.dim()]
    return source.permute(order), np.argsort(order).tolist()


class Resident:
    """A tensor that arrays [N, ...] are copied into; it moves only to grow, and N may vary."""

    def __init__(self, device: torch.device) -> None:
        self._tensor = torch.empty(0, device=device)

    def load(self, array: Array) -> Tensor:
        """Copy an array in, whatever its strides; returns the rows that hold it."""
        source = torch.from_numpy(array)
        num = len(source)
        fits = source.shape[1:] == self._tensor.shape[1:] and source.dtype == self._tensor.dtype
        if not fits or num > len(self._tensor):
            shape = (num + num // 8, *source.shape[1:])  # room for a few rows more next time
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


class ResidentPictures:
    """Pictures or sequences [N, C, ...] on a device, in strides of [N, ..., C], which convolutions read best;
    stacks of frames are put together where they are taken."""

    def __init__(self, device: torch.device) -> None:
        self._stored, self._placed = Resident(device), Resident(device)

    def load(self, pictures: Array, places: Array | None = None) -> None:
        """Copy them in. places: where `pictures` are frames, [N, k] of them."""
        self._rows = self._stored.load(np.moveaxis(pictures, 1, -1))
        self._places = None if places is None else self._placed.load(places)

    def take(self, rows: slice | Tensor) -> Tensor:
        """Some of the N."""
        if self._places is None:
            return _pick(self._rows, rows).movedim(-1, 1)
        frames = [self._rows.index_select(0, each) for each in _pick(self._places, rows).unbind(1)]
        return torch.cat(frames, -1).movedim(-1, 1)

    def where(self) -> tuple[int, ...]:
        """The addresses of what `take` reads."""
        return tuple(each.data_ptr() for each in (self._rows, self._places) if each is not None)


def _pick(source: Tensor, rows: slice | Tensor) -> Tensor:
    return source[rows] if isinstance(rows, slice) else source.index_select(0, rows)
