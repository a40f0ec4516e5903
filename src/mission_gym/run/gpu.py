"""What NVML tells about one GPU, as probes for the sampler: field by field, where the driver supports it.

A field that is refused once is not asked again. NVML is handed in, so that its logic runs without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Probe = Callable[[], float | None]  # None: no such reading

_FIELDS: Mapping[str, Callable[[Any, Any], float]] = {
    "gpu_use": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100.0,
    "gpu_power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000.0,
    "gpu_temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "gpu_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
}


def load_nvml() -> Any:
    """NVIDIA's bindings; importing them needs no driver."""
    import pynvml

    return pynvml


def open_gpu(nvml: Any, *uuids: str) -> dict[str, Probe]:
    """Probes of the GPU with the first of these UUIDs, `GPU-...`, that there is; none where NVML or the GPU
    can't be reached."""
    for uuid in uuids:
        try:
            nvml.nvmlInit()
            gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError:
            continue
        return {name: _Field(nvml, gpu, read) for name, read in _FIELDS.items()}
    return {}


class _Field:
    """One reading, until the driver refuses it."""

    def __init__(self, nvml: Any, gpu: Any, read: Callable[[Any, Any], float]) -> None:
        self._nvml, self._gpu, self._read = nvml, gpu, read
        self._refused = False

    def __call__(self) -> float | None:
        if self._refused:
            return None
        try:
            return float(self._read(self._nvml, self._gpu))
        except self._nvml.NVMLError:
            self._refused = True
            return None
