"""Which jobs start now, and with how many cores, by measurements of rates and memory.

The cores that jobs need never exceed those of the machine, nor their memory the free memory of machine or
GPU. Within these limits one job per core starts at once. Beyond that, one more starts as long as the measured
aggregate rate rises. A job that got more cores than it needs, because no other job waited, does not hold back
later jobs. On a cluster, jobs are first dealt to nodes and then packed on each node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import psutil

from mission_gym.errors import RunStateError
from mission_gym.ray.cluster import Node
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir

FIRST_GUESS_BYTES = 600 << 20  # of an unmeasured run: torch and a small network
FIRST_GUESS_VRAM_BYTES = 1 << 30  # likewise: a CUDA context and a small network
_MEMORY_SHARE = 0.9  # of the free memory
_RISE = 1.03  # of the aggregate rate; one more job below it was not worth it
_FALL = 0.95
WINDOW_S = 20.0
_MEMORY_S = 5.0  # between two measurements of one job
_LIST_S = 5.0  # between two readings of a folder of runs


VramByPid = Mapping[int, int]  # bytes of GPU memory by process id


class WaitingJob(NamedTuple):
    """A job that could start."""

    key: str
    variant: str
    priority: int = 0
    cores: int = 1  # at least
    not_before: float = 0.0  # for retries
    uses_gpu: bool = False


class RunningJob(NamedTuple):
    """A job that runs, with its cores and its present memory."""

    key: str
    variant: str
    cores: int
    memory_bytes: int = 0
    uses_gpu: bool = False
    vram_bytes: int = 0
    min_cores: int | None = None  # that it needs; None: all of its cores


class Capacity(NamedTuple):
    """The cores of the machine, and its free memory."""

    cores: int
    memory_free_bytes: int
    vram_free_bytes: int | None = None  # None: unknown, and not counted


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """Measurements of running jobs."""

    memory_bytes: Mapping[str, int] = field(default_factory=dict)  # the most of a run, by variant
    vram_bytes: Mapping[str, int] = field(default_factory=dict)  # likewise
    rates: Mapping[int, float] = field(default_factory=dict)  # aggregate rate by number of jobs at once
    are_long: bool = False  # the jobs run long enough for a measurement to be negligible

    def need_bytes(self, variant: str) -> int:
        return self.memory_bytes.get(variant, FIRST_GUESS_BYTES)

    def need_vram_bytes(self, variant: str) -> int:
        return self.vram_bytes.get(variant, FIRST_GUESS_VRAM_BYTES)


class JobStart(NamedTuple):
    """A job that starts now, with its cores."""

    key: str
    cores: int
    node: str = ""  # of a cluster


class StartDecision(NamedTuple):
    """The jobs that start, and why no more do."""

    starts: tuple[JobStart, ...] = ()
    reason: str = ""


def plan_starts(
    waiting: Sequence[WaitingJob],
    running: Sequence[RunningJob],
    capacity: Capacity,
    use: MeasuredUse,
    now: float,
) -> StartDecision:
    """Choose by priority, then by order. The first job that does not fit holds back the jobs behind it, so
    that a large job is not overtaken forever."""
    due = [job for job in waiting if job.not_before <= now]
    if not due:
        return StartDecision(reason="waiting to retry a job" if waiting else "")
    due.sort(key=lambda job: -job.priority)  # stable
    num_running = len(running)
    if use.are_long and num_running and num_running not in use.rates and num_running + 1 in use.rates:
        return StartDecision(reason=f"measuring {num_running} at once")
    on_gpu = [job for job in running if job.uses_gpu]
    # One job per core pays for sure; whether jobs share a GPU well must be measured.
    sure = 1 if on_gpu or any(job.uses_gpu for job in due) else capacity.cores
    limit = find_limit(use.rates, sure)
    free = capacity.cores - sum(job.cores if job.min_cores is None else job.min_cores for job in running)
    spare = capacity.cores - sum(job.cores for job in running)
    memory = _MEMORY_SHARE * capacity.memory_free_bytes - sum(
        max(0, use.need_bytes(job.variant) - job.memory_bytes) for job in running
    )
    vram = _MEMORY_SHARE * (inf if capacity.vram_free_bytes is None else capacity.vram_free_bytes) - sum(
        max(0, use.need_vram_bytes(job.variant) - job.vram_bytes) for job in on_gpu
    )
    num_on_gpu = len(on_gpu)
    chosen: list[tuple[WaitingJob, int]] = []
    reason = ""
    for job in due:
        cores, size = min(job.cores, capacity.cores), use.need_bytes(job.variant)
        vram_size = use.need_vram_bytes(job.variant) if job.uses_gpu else 0
        number = num_running + len(chosen)
        if cores > free:
            reason = f"all {capacity.cores} cores are in use"
        elif number and number >= limit:
            reason = (
                f"{limit} at once are the fastest measured so far; more are not yet measured or not faster"
            )
        elif size > memory and number:
            reason = f"another job needs {size / 1e9:.1f} GB, which are not free"
        elif vram_size > vram and num_on_gpu:
            reason = f"another job needs {vram_size / 1e9:.1f} GB of GPU memory, which are not free"
        if reason:
            break
        chosen.append((job, cores))
        free -= cores
        spare -= cores
        memory -= size
        vram -= vram_size
        num_on_gpu += job.uses_gpu
    # Spare cores are spread over the jobs that start, the first ones first.
    each, more = divmod(max(spare, 0), len(chosen)) if chosen else (0, 0)
    starts = [JobStart(job.key, cores + each + (k < more)) for k, (job, cores) in enumerate(chosen)]
    return StartDecision(tuple(starts), reason)


def find_limit(rates: Mapping[int, float], sure: int) -> int:
    """How many jobs may run at once: `sure` unless fewer were measured to be faster. More are allowed while
    each measured number raised the aggregate rate, plus one number that is not measured yet."""
    for number in range(2, sure + 1):
        if number in rates and number - 1 in rates and rates[number] < _FALL * rates[number - 1]:
            return number - 1
    limit = sure
    while limit in rates and rates.get(limit + 1, inf) >= _RISE * rates[limit]:
        limit += 1
    return limit


def plan_placements(
    waiting: Sequence[WaitingJob],
    running: Mapping[str, Sequence[RunningJob]],
    nodes: Sequence[Node],
    now: float,
) -> StartDecision:
    """Deal jobs by priority, each to the node where it gets the most cores. running: by node name. Nodes lend
    a known amount of memory, and nothing is measured there. A job on a GPU has it alone."""
    if not nodes:
        return StartDecision(reason="the cluster has no nodes")
    due = sorted((job for job in waiting if job.not_before <= now), key=lambda job: -job.priority)
    on_nodes = {node.name: running.get(node.name, ()) for node in nodes}
    cores = {node.name: node.num_cpus - sum(job.cores for job in on_nodes[node.name]) for node in nodes}
    gpus = {node.name: node.num_gpus - sum(job.uses_gpu for job in on_nodes[node.name]) for node in nodes}
    free = dict(cores)
    dealt: dict[str, list[WaitingJob]] = {node.name: [] for node in nodes}
    reason = "waiting to retry a job" if waiting and not due else ""
    for job in due:
        able = [node for node in nodes if node.num_gpus or not job.uses_gpu]
        if not able:
            reason = "no node of the cluster lends a GPU"
            break
        asked = min(job.cores, max(node.num_cpus for node in able))
        names = [node.name for node in able if free[node.name] >= max(asked, 1)]
        names = [name for name in names if gpus[name] > 0 or not job.uses_gpu]
        if not names:
            what = "GPUs" if job.uses_gpu and not any(gpus[node.name] > 0 for node in able) else "CPUs"
            reason = f"the {what} of the cluster are in use"
            break
        best = max(names, key=lambda name: cores[name] / (1 + len(dealt[name])))
        dealt[best].append(job._replace(cores=asked, uses_gpu=False))
        free[best] -= asked
        gpus[best] -= job.uses_gpu
    starts = []
    for node in nodes:
        present = [job._replace(uses_gpu=False) for job in on_nodes[node.name]]
        capacity = Capacity(node.num_cpus, node.memory_bytes)
        decision = plan_starts(dealt[node.name], present, capacity, MeasuredUse(), now)
        starts += [start._replace(node=node.name) for start in decision.starts]
        reason = reason or (decision.reason if dealt[node.name] else "")
    return StartDecision(tuple(starts), reason)


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
