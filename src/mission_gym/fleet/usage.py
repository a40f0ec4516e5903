"""What running jobs show about the machine: their rate together, the memory that each variant needs, and the
runs next to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import psutil

from mission_gym.errors import RunStateError
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir

WINDOW_S = 20.0
_MEMORY_S = 5.0  # between two measurements of one job
_LIST_S = 5.0  # between two readings of a folder of runs


VramByPid = Mapping[int, int]  # bytes of GPU memory by process id


class JobSteps(NamedTuple):
    """The progress of a running job."""

    variant: str
    step: int


class JobRates:
    """The aggregate rate of each number of jobs at once, over windows of some seconds.

    `rates` has the latest aggregate by number of jobs, for jobs that share a GPU through MPS (True) and for
    others. Each job counts in units of its variant's first rate, so that a fast environment does not hide a
    slow one. Times are of a monotonic clock.
    """

    def __init__(self) -> None:
        self.rates: dict[bool, dict[int, float]] = {False: {}, True: {}}
        self._units: dict[str, float] = {}  # a variant's first rate, the mean of its runs
        self._since: tuple[float, Mapping[str, JobSteps]] | None = None

    def add(self, now: float, steps: Mapping[str, JobSteps], *, under_mps: bool | None = False) -> None:
        """Take in the steps of every running job. A job without steps starts a new window. under_mps: None if
        only some jobs are, which is not counted."""
        if not steps or not all(each.step for each in steps.values()):
            self._since = None
            return
        if self._since is None or self._since[1].keys() != steps.keys():
            self._since = (now, steps)
            return
        start, before = self._since
        if now - start < WINDOW_S:
            return
        rates = {key: (each.step - before[key].step) / (now - start) for key, each in steps.items()}
        self._since = (now, steps)
        if min(rates.values()) <= 0.0:  # a long evaluation, or a resume from an earlier checkpoint
            return
        for variant in {each.variant for each in steps.values()} - self._units.keys():
            self._units[variant] = mean(rates[key] for key, each in steps.items() if each.variant == variant)
        if under_mps is not None:
            total = sum(rate / self._units[steps[key].variant] for key, rate in rates.items())
            self.rates[under_mps][len(rates)] = total


class JobMemory(NamedTuple):
    """Bytes that a job uses now."""

    memory_bytes: int = 0
    vram_bytes: int = 0


class MemoryUse:
    """Measures jobs now and then; `memory` and `vram` are the largest use of a run, by variant."""

    def __init__(self) -> None:
        self.memory: dict[str, int] = {}
        self.vram: dict[str, int] = {}
        self._measured: dict[str, tuple[float, JobMemory]] = {}

    def measure(
        self, key: str, variant: str, pid: int | None, now: float, *, is_running: bool, vram: VramByPid
    ) -> JobMemory:
        """The memory of a job. is_running: only a job that trains counts for its variant. vram: GPU memory
        by process id."""
        measured_at, memory = self._measured.get(key, (-_MEMORY_S, JobMemory()))
        if pid is not None and now - measured_at >= _MEMORY_S:
            memory = measure_memory(pid, vram)
            self._measured[key] = (now, memory)
            if is_running:
                self.memory[variant] = max(memory.memory_bytes, self.memory.get(variant, 0))
                if memory.vram_bytes:  # else it is not on a GPU yet, or the driver does not report it
                    self.vram[variant] = max(memory.vram_bytes, self.vram.get(variant, 0))
        return memory

    def forget(self, key: str) -> None:
        """Drop a job that has ended."""
        self._measured.pop(key, None)


def measure_memory(pid: int, vram: VramByPid) -> JobMemory:
    """The memory of a process and its descendants, shared memory by share; zeros if it has just ended."""
    memory = on_gpu = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            on_gpu += vram.get(each.pid, 0)
            with suppress(psutil.Error):
                info = each.memory_full_info()
                memory += int(getattr(info, "pss", info.rss))
    return JobMemory(memory, on_gpu)


class PresentRun(NamedTuple):
    """A run on this machine, of a job or of a process next to the queue."""

    key: str
    variant: str
    pid: int | None
    cores: int
    min_cores: int
    uses_gpu: bool
    is_running: bool  # it has started to train, for a job as the journal says
    status: dict[str, Any]

    @property
    def steps(self) -> JobSteps:
        is_training = self.status.get("state") == "running"
        return JobSteps(self.variant, (self.status.get("step") or 0) if is_training else 0)


class NearbyRuns:
    """Finds runs outside the queue, for example of `mission-gym train` in another terminal. They use the
    machine, too."""

    def __init__(self) -> None:
        self._listed_at = float("-inf")
        self._runs: list[RunDir] = []

    def find(
        self, folders: Iterable[Path], job_pids: set[int | None], cores: int, now: float
    ) -> list[PresentRun]:
        """The running ones below folders of runs, which are read now and then. cores: of the machine."""
        if now - self._listed_at >= _LIST_S:
            self._listed_at, self._runs = now, []
            for folder in folders:
                with suppress(RunStateError):
                    self._runs += [run for run in list_runs(folder) if run.is_locked]
        found = []
        for run in self._runs:
            with suppress(RunStateError):
                status, key = run.read_status(), str(run.path)
                pid, state = status.get("pid"), status.get("state")
                if state in ("starting", "running") and pid not in job_pids:
                    found.append(PresentRun(key, key, pid, cores, 1, False, state == "running", status))
        return found
