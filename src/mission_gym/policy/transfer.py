"""Arrays to tensors on a device, into memory that is allocated once."""

from __future__ import annotations

import torch
from torch import Tensor

from mission_gym.data import Array


class Resident:
    """A tensor that arrays [N, ...] are copied into; it moves only to grow, and N may vary.

    To CUDA the way leads through pinned memory, so that nobody waits for the copy.
    """

    def __init__(self, device: torch.device) -> None:
        self._tensor = torch.empty(0, device=device)
        self._pinned: Tensor | None = None
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def load(self, array: Array) -> Tensor:
        """Copy an array in, whatever its strides; returns the rows that hold it."""
        source = torch.from_numpy(array)
        num = len(source)
        fits = source.shape[1:] == self._tensor.shape[1:] and source.dtype == self._tensor.dtype
        if not fits or num > len(self._tensor):
            shape = (num + num // 8, *source.shape[1:])  # room for a few rows more next time
            self._tensor = torch.empty(shape, dtype=source.dtype, device=self._tensor.device)
            if self._copied is not None:
                self._pinned = torch.empty(shape, dtype=source.dtype, pin_memory=True)
        rows = self._tensor[:num]
        if self._pinned is None or self._copied is None:
            return rows.copy_(source)
        self._copied.synchronize()  # the copy before may still read the pinned rows
        rows.copy_(self._pinned[:num].copy_(source), non_blocking=True)
        self._copied.record()
        return rows
