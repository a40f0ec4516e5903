"""The memory of the GPU that runs use, as NVML tells it: what is free, and what each process has.

That GPU is the first one that CUDA_VISIBLE_DEVICES leaves visible.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, NamedTuple


class Vram(NamedTuple):
    """What NVML tells; processes of containers may be missing, since they have other ids there."""

    free_bytes: int
    by_pid: dict[int, int]


def read_vram(nvml: Any = None) -> Vram | None:
    """Read it; None without a driver. nvml: NVIDIA's bindings, for tests."""
    nvml = nvml or importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        gpu = _find_gpu(nvml, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip())
        free = int(nvml.nvmlDeviceGetMemoryInfo(gpu).free)
    except nvml.NVMLError:
        return None
    by_pid: dict[int, int] = {}
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
        try:
            by_pid |= {each.pid: int(each.usedGpuMemory or 0) for each in getattr(nvml, name)(gpu)}
        except nvml.NVMLError:  # the driver does not tell
            continue
    return Vram(free, by_pid)


def _find_gpu(nvml: Any, visible: str) -> Any:
    if visible.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(visible)
    return nvml.nvmlDeviceGetHandleByIndex(int(visible) if visible.isdigit() else 0)
