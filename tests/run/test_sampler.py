"""The sampler: what it hands over, and that it ends; the GPU's probes against an invented NVML."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mission_gym.data import Span
from mission_gym.run.sampler import MachineSampler, Sample, Use, open_gpu
from timeouts import LONG_S


def test_it_samples_cores_memory_and_probes_and_ends() -> None:
    asked = threading.Semaphore(0)

    def probe() -> float:
        asked.release()
        return 0.5

    with MachineSampler(probes={"gpu_use": probe, "gpu_power_w": lambda: None}, every_s=0.001) as sampler:
        for _ in range(40):  # ticks of the system are 10 ms apart
            assert asked.acquire(timeout=LONG_S)
    samples = sampler.take()
    assert not any(thread.name == "sampler" for thread in threading.enumerate())
    assert len(samples) >= 30
    assert sampler.take() == []
    assert sampler.cpu_s > 0
    use = Use()
    use.add(samples, [])
    metrics = use.metrics()
    assert metrics["machine/gpu_use"] == metrics["machine/gpu_use_max"] == 0.5
    assert 0 < metrics["machine/memory_use"] < 1
    assert metrics["machine/memory_bytes"] > 1e6
    assert "machine/gpu_power_w" not in metrics
    for sample in samples:
        assert sample.start < sample.end
        assert all(0.0 <= share <= 1.0 for share in sample.cores)


def test_memory_and_load_are_known_of_a_run_of_a_moment() -> None:
    with MachineSampler(every_s=3600.0) as sampler:
        pass
    use = Use()
    use.add(sampler.take(), [])
    assert {"machine/memory_use", "machine/memory_bytes", "machine/load"} <= use.metrics().keys()
    assert "machine/cpu" not in use.metrics()


def test_all_processes_below_count_and_those_that_ended_do_not_disturb() -> None:
    alone = _read_memory()
    below = "block = bytearray(50_000_000); print(1, flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {below!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert _read_memory(lambda: child.communicate(b"\n")) > alone + 40e6


def _read_memory(then: Callable[[], object] = lambda: None) -> float:
    """Memory of this process and those below. then: done while the sampler still looks at them."""
    asked = threading.Semaphore(0)

    def probe() -> float:
        asked.release()
        return 0.0

    with MachineSampler({"x": probe}, every_s=0.001) as sampler:
        for action in (lambda: None, then):
            action()
            for _ in range(8):
                assert asked.acquire(timeout=LONG_S)
    return next(size for sample in sampler.take() if (size := sample.values.get("memory_bytes")))


def test_the_use_of_a_phase_is_weighed_by_seconds() -> None:
    samples = [
        Sample(0.0, 1.0, {"cpu": 1.0, "gpu_use": 0.0, "gpu_power_w": 20.0}, (1.0, 1.0)),
        Sample(1.0, 2.0, {"cpu": 0.5, "gpu_use": 0.8}, (1.0, 0.0)),
        Sample(2.0, 3.0, {"memory_bytes": 7.0}),
    ]
    spans = [
        Span("collector", "collect", 0.0, 1.25),
        Span("learner", "update", 1.25, 2.5),
        Span("main", "record", 0.0, 3.0),
    ]
    use = Use()
    use.add(samples, spans)
    assert use.metrics() == {
        "machine/cpu": 0.75, "machine/cpu_max": 1.0, "machine/gpu_use": 0.4, "machine/gpu_use_max": 0.8,
        "machine/memory_bytes": 7.0, "machine/memory_bytes_max": 7.0,
        "machine/cpu_collect": 0.9, "machine/cpu_update": 0.5,
        "machine/gpu_use_collect": 0.16, "machine/gpu_use_update": 0.8,
        "machine/gpu_power_w": 20.0, "machine/gpu_power_w_max": 20.0, "machine/gpu_power_w_collect": 20.0,
    }  # fmt: skip
    assert use.cores() == [1.0, 0.5]
    assert Use().metrics() == {}
    assert Use().cores() == []


class Refused(Exception):
    pass


class FakeNvml:
    """One GPU whose driver tells no power; counts how often it was asked for that."""

    NVMLError = Refused
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1

    def __init__(self) -> None:
        self.asked = 0

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1":
            raise Refused("not found")
        return "handle"

    def nvmlDeviceGetUtilizationRates(self, gpu: str) -> Any:
        return SimpleNamespace(gpu=12, memory=3)

    def nvmlDeviceGetMemoryInfo(self, gpu: str) -> Any:
        return SimpleNamespace(used=2_000_000_000, total=8_000_000_000)

    def nvmlDeviceGetPowerUsage(self, gpu: str) -> int:
        self.asked += 1
        raise Refused("not supported")

    def nvmlDeviceGetTemperature(self, gpu: str, kind: int) -> int:
        return 61

    def nvmlDeviceGetClockInfo(self, gpu: str, kind: int) -> int:
        return 1500


def test_nvml_is_read_field_by_field() -> None:
    nvml = FakeNvml()
    probes = open_gpu(nvml, "GPU-1")
    for _ in range(3):
        assert {name: probe() for name, probe in probes.items()} == {
            "gpu_use": 0.12, "gpu_power_w": None, "gpu_temperature_c": 61.0,
            "gpu_clock_mhz": 1500.0,
        }  # fmt: skip
    assert nvml.asked == 1


def test_a_gpu_that_nvml_does_not_know_has_no_probes() -> None:
    assert open_gpu(FakeNvml(), "GPU-2") == {}


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a driver")
def test_the_real_bindings_without_a_driver_have_no_probes() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert open_gpu(pynvml, "GPU-1") == {}
