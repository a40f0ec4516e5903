"""A thread that looks at the machine five times a second: cores, memory, and what further probes tell.

It reads counters of the system, starts no process, and meets the training loop only in `take`, which hands
over the samples since the last call.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import psutil

from mission_gym.data import Span
from mission_gym.run.gpu import Probe

SAMPLE_S = 0.2
PHASES = ("collect", "update", "evaluate", "save")  # for which the use of cores and GPU is told
_PER_PHASE = {"cpu", "gpu_use", "gpu_power_w", "gpu_temperature_c", "gpu_memory_bytes"}
_EVERY = 5  # samples between looks at processes and memory, which cost the most and change the least
_EVERY_LIST = 25  # between looks for new processes: all of the machine are read for that
_NUM_SAMPLES = 4096  # kept between two calls of `take`: a quarter of an hour


class Sample(NamedTuple):
    """Readings over [start, end] of `time.perf_counter`; shares of 1, bytes, and units in the name."""

    start: float
    end: float
    values: dict[str, float]
    cores: tuple[float, ...] = ()  # share of each usable core that was busy


class MachineSampler:
    """A context manager. A run is this process and all below it: workers, and what environments start (games,
    browsers, servers)."""

    def __init__(self, probes: Mapping[str, Probe] | None = None, every_s: float = SAMPLE_S) -> None:
        self._readings = _Readings(probes or {})
        self._every_s = every_s
        self._samples: list[Sample] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)
        self.cpu_s = 0.0  # what the thread itself has cost

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def take(self) -> list[Sample]:
        """The samples since the last call."""
        with self._lock:
            taken, self._samples = self._samples, []
        return taken

    def _work(self) -> None:
        self._keep(self._readings.read())  # memory and load are known at once, of a run of a moment too
        while not self._done.wait(self._every_s):
            self._keep(self._readings.read())
            self.cpu_s = time.thread_time()

    def _keep(self, sample: Sample) -> None:
        with self._lock:
            self._samples = [*self._samples[1 - _NUM_SAMPLES :], sample]


class _Readings:
    """Counters of the system, as differences since the last reading."""

    def __init__(self, probes: Mapping[str, Probe]) -> None:
        self._probes = probes
        self._me = psutil.Process()
        self._below: list[psutil.Process] = []
        affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self._usable = sorted(affinity) if affinity else None
        self._at = self._looked_at = time.perf_counter()
        self._turn = 0
        self._cores: list[tuple[float, float]] = []  # busy and all seconds of each usable core
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
        """The busy share of each usable core; empty at first, and where no tick has passed."""
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
        """Cores that this run used, and its memory: what workers share with others is counted once."""
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
        if before:  # a worker that is new counts from the next look on
            spent = sum(used[pid] - before[pid] for pid in used if pid in before)
            values["own_cores"] = max(spent, 0.0) / seconds
        return values


@dataclass(slots=True)
class Use:
    """The use of the machine over some stretch: means and maxima, and for each phase the mean."""

    _totals: dict[str, tuple[float, float]] = field(default_factory=dict)  # weighted sums, and the weights
    _maxima: dict[str, float] = field(default_factory=dict)
    _cores: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, samples: Sequence[Sample], spans: Sequence[Span]) -> None:
        """Take in samples, and the spans of the same stretch."""
        for sample in samples:
            for name, value in sample.values.items():
                self._count(name, value, 1.0)
                self._maxima[name] = max(value, self._maxima.get(name, value))
            if sample.cores:
                self._cores = [*self._cores[-24:], sample.cores]
            # A sample that reaches over several phases counts for each by the seconds it has there.
            for phase, weight in _weigh_phases(sample, spans).items():
                for name in sample.values.keys() & _PER_PHASE:
                    self._count(f"{name}_{phase}", sample.values[name], weight)

    def _count(self, name: str, value: float, weight: float) -> None:
        total, weights = self._totals.get(name, (0.0, 0.0))
        self._totals[name] = total + weight * value, weights + weight

    def metrics(self) -> dict[str, float]:
        """The keys `machine/*` of a row; those without a sample are missing."""
        means = {f"machine/{name}": total / weights for name, (total, weights) in self._totals.items()}
        maxima = {f"machine/{name}_max": value for name, value in self._maxima.items()}
        return {name: round(value, 4) for name, value in (means | maxima).items()}

    def cores(self) -> list[float]:
        """The mean busy share of each core over the last five seconds of samples."""
        return [round(sum(shares) / len(shares), 3) for shares in zip(*self._cores, strict=False)]


def _weigh_phases(sample: Sample, spans: Sequence[Span]) -> dict[str, float]:
    """The seconds of a sample that lie in spans, by phase."""
    seconds = dict.fromkeys(PHASES, 0.0)
    begin, until = sample.start, sample.end
    for _, phase, start, end in spans:
        if start < until and end > begin and phase in seconds:
            seconds[phase] += min(end, until) - max(start, begin)
    return {phase: weight for phase, weight in seconds.items() if weight > 0.0}
