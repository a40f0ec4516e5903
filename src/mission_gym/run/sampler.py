"""A thread that samples the machine five times per second: cores, memory, and the GPU through NVML.

It reads system counters and starts no process. The training loop calls `take` for the samples since the last
call. A GPU reading that the driver refuses once is not requested again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import psutil

from mission_gym.data import Span

SAMPLE_S = 0.2
PHASES = ("collect", "update", "evaluate", "save")  # with their own means of CPU and GPU use
_PER_PHASE = {"cpu", "gpu_use", "gpu_power_w", "gpu_temperature_c", "gpu_memory_bytes"}
_EVERY = 5  # samples between readings of processes and memory, which cost the most and change the least
_EVERY_LIST = 25  # samples between searches for new processes, which read all of the machine
_NUM_SAMPLES = 4096  # kept between two calls of `take`: a quarter of an hour
Probe = Callable[[], float | None]  # None: no reading
_GPU_FIELDS: Mapping[str, Callable[[Any, Any], float]] = {
    "gpu_use": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100.0,
    "gpu_power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000.0,
    "gpu_temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "gpu_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
}


class Sample(NamedTuple):
    """Readings over [start, end] of `time.perf_counter`; shares of 1, bytes, and units in the name."""

    start: float
    end: float
    values: dict[str, float]
    cores: tuple[float, ...] = ()  # busy share of each usable core


class MachineSampler:
    """A context manager. The run's use is that of this process and all its descendants: workers, and games,
    browsers or servers that environments start."""

    def __init__(self, probes: Mapping[str, Probe] | None = None, every_s: float = SAMPLE_S) -> None:
        self._readings = _Readings(probes or {})
        self._every_s = every_s
        self._samples: list[Sample] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)
        self.cpu_s = 0.0  # CPU time of the thread itself
        self.refusal = ""  # the cause, if the thread could not start

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except RuntimeError as error:  # the system refuses a thread: a run without samples
            self.refusal = str(error)
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def take(self) -> list[Sample]:
        """The samples since the last call."""
        with self._lock:
            taken, self._samples = self._samples, []
        return taken

    def _work(self) -> None:
        self._keep(self._readings.read())  # so that a very short run has memory and load, too
        while not self._done.wait(self._every_s):
            self._keep(self._readings.read())
            self.cpu_s = time.thread_time()

    def _keep(self, sample: Sample) -> None:
        with self._lock:
            self._samples = [*self._samples[1 - _NUM_SAMPLES :], sample]


class _Readings:
    """System counters, as differences since the last reading."""

    def __init__(self, probes: Mapping[str, Probe]) -> None:
        self._probes = probes
        self._me = psutil.Process()
        self._below: list[psutil.Process] = []
        affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self._usable = sorted(affinity) if affinity else None
        self._at = self._looked_at = time.perf_counter()
        self._turn = 0
        self._cores: list[tuple[float, float]] = []  # busy and total seconds of each usable core
        self._used: dict[int, float] = {}  # CPU seconds by process

    def read(self) -> Sample:
        before, self._at = self._at, time.perf_counter()
        cores = self._read_cores()
        values = {"cpu": sum(cores) / len(cores)} if cores else {}
        if self._turn % _EVERY == 0:
            values |= self._read_processes()
            if hasattr(os, "getloadavg"):
                values["load"] = os.getloadavg()[0] / (len(self._cores) or 1)
        self._turn += 1
        for name, probe in self._probes.items():
            value = probe()
            if value is not None:
                values[name] = value
        return Sample(before, self._at, values, cores)

    def _read_cores(self) -> tuple[float, ...]:
        """The busy share of each usable core; empty at first, and if the clock has not ticked."""
        times = psutil.cpu_times(percpu=True)
        if self._usable is not None:
            times = [times[core] for core in self._usable if core < len(times)]
        now = [(sum(each[:8]) - each.idle - getattr(each, "iowait", 0.0), sum(each[:8])) for each in times]
        before, self._cores = self._cores, now
        if len(before) != len(now) or any(new[1] <= old[1] for new, old in zip(now, before, strict=True)):
            return ()
        shares = ((new[0] - old[0]) / (new[1] - old[1]) for new, old in zip(now, before, strict=True))
        return tuple(min(max(share, 0.0), 1.0) for share in shares)

    def _read_processes(self) -> dict[str, float]:
        """Cores that this run used, and its memory; memory that workers share is counted once."""
        seconds, self._looked_at = self._at - self._looked_at, self._at
        used = {self._me.pid: time.process_time()}
        size = self._me.memory_info().rss
        if self._turn % _EVERY_LIST == 0:
            self._below = self._me.children(recursive=True)
        for child in self._below:
            try:
                times, taken = child.cpu_times(), child.memory_info()
            except psutil.Error:  # it has just ended
                continue
            used[child.pid] = times.user + times.system
            size += taken.rss - getattr(taken, "shared", 0)
        before, self._used = self._used, used
        memory = psutil.virtual_memory()
        values = {"memory_use": 1.0 - memory.available / memory.total, "memory_bytes": float(size)}
        if before:  # a new worker counts from its second reading
            spent = sum(used[pid] - before[pid] for pid in used if pid in before)
            values["own_cores"] = max(spent, 0.0) / seconds
        return values


@dataclass(slots=True)
class Use:
    """The use of the machine over a period: means, maxima, and means by phase."""

    _totals: dict[str, tuple[float, float]] = field(default_factory=dict)  # weighted sums, and the weights
    _maxima: dict[str, float] = field(default_factory=dict)
    _cores: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, samples: Sequence[Sample], spans: Sequence[Span]) -> None:
        """Add samples, and the spans of the same period."""
        for sample in samples:
            for name, value in sample.values.items():
                self._count(name, value, 1.0)
                self._maxima[name] = max(value, self._maxima.get(name, value))
            if sample.cores:
                self._cores = [*self._cores[-24:], sample.cores]
            # A sample that covers several phases is weighted by its seconds in each.
            for phase, weight in _weigh_phases(sample, spans).items():
                for name in sample.values.keys() & _PER_PHASE:
                    self._count(f"{name}_{phase}", sample.values[name], weight)

    def _count(self, name: str, value: float, weight: float) -> None:
        total, weights = self._totals.get(name, (0.0, 0.0))
        self._totals[name] = total + weight * value, weights + weight

    def metrics(self) -> dict[str, float]:
        """The keys `machine/*` of a row; keys without samples are missing."""
        means = {f"machine/{name}": total / weights for name, (total, weights) in self._totals.items()}
        maxima = {f"machine/{name}_max": value for name, value in self._maxima.items()}
        return {name: round(value, 4) for name, value in (means | maxima).items()}

    def cores(self) -> list[float]:
        """The mean busy share of each core over the last five seconds of samples."""
        return [round(sum(shares) / len(shares), 3) for shares in zip(*self._cores, strict=False)]


def _weigh_phases(sample: Sample, spans: Sequence[Span]) -> dict[str, float]:
    """The seconds of a sample within spans, by phase."""
    seconds = dict.fromkeys(PHASES, 0.0)
    begin, until = sample.start, sample.end
    for _, phase, start, end in spans:
        if start < until and end > begin and phase in seconds:
            seconds[phase] += min(end, until) - max(start, begin)
    return {phase: weight for phase, weight in seconds.items() if weight > 0.0}


def load_nvml() -> Any:
    """NVIDIA's bindings; importing them does not need a driver."""
    import pynvml

    return pynvml


def open_gpu(nvml: Any, *uuids: str) -> dict[str, Probe]:
    """Probes of the first GPU that one of these UUIDs (`GPU-...`) names; none if NVML can't reach it."""
    for uuid in uuids:
        try:
            nvml.nvmlInit()
            gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError:
            continue
        return {name: _GpuProbe(nvml, gpu, read) for name, read in _GPU_FIELDS.items()}
    return {}


class _GpuProbe:
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
