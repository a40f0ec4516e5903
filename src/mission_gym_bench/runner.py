"""Runs training jobs of Mission Gym and its peers in fresh processes, and makes rows of the results.

Fresh processes separate the threads, caches and imports of the sides. No process outlives `run_jobs`, and
their files are in a temporary folder. Every side gets the same job and resolves the same flags to the same
config, so settings are equal.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from mission_gym.errors import WorkerError
from mission_gym.procs import usable_cores
from mission_gym.procs.machine import read_cpu_name, versions
from mission_gym.store.files import read_json, write_json

Row = dict[str, Any]
Measure = Callable[[float], float]  # seconds -> steps per second
OURS = "ours"
PEERS = {"sb3": "stable_baselines3"}  # side and extra -> the package it needs
_SIMULATORS = ("box2d", "box2d-py", "mujoco")  # distributions that environments use
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_LOG_TAIL = 2000  # characters of a failed child's output


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One training by one side; `flags` are those of `mission-gym train`."""

    side: str  # "ours" or a peer
    env_id: str
    flags: dict[str, Any]
    report_episodes: int = 0  # of the best policy, on the report suite
    form: str = ""  # how the side runs, if it can run in several ways
    subproc: bool = False  # a peer's environments run in their own processes
    threads: int = 1  # of a peer's torch
    trainer: str = ""  # `module:function` of this package; default: `train` of the side's module

    @property
    def name(self) -> str:
        return f"{self.side} {self.form}".strip()

    def __str__(self) -> str:
        return f"{self.env_id} seed {self.flags['seed']} {self.name}"

    def run(self, folder: Path) -> TrainingResult:
        """Train in this process; the side may write to the folder."""
        module, _, function = (self.trainer or f"{self.side}:train").partition(":")
        train = getattr(importlib.import_module(f"mission_gym_bench.{module}"), function)
        result: TrainingResult = train(self, folder)
        return result


class Evaluation(NamedTuple):
    """An evaluation on the selection suite."""

    step: int
    train_s: float  # seconds of training before it, without evaluations
    return_mean: float


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of one training."""

    gradient_steps: int
    warm_steps: int  # after the first update
    warm_s: float
    return_mean: float | None  # rolling, over the last training episodes
    evals: list[Evaluation]
    report_return: float | None
    evidence: str = ""  # the verdict of our run on its bottleneck
    wall_s: float = 0.0  # of the whole process, start-up included; measured by the parent

    @property
    def steps_per_s(self) -> float:
        return self.warm_steps / self.warm_s


class Stopwatch:
    """Seconds of a training loop, without the skipped ones."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begun = clock()

    def skip(self, seconds: float) -> None:
        self._begun += seconds

    def read_s(self) -> float:
        return self._clock() - self._begun


def find_sides() -> list[str]:
    """Return ours and the installed peers."""
    return [OURS, *(peer for peer, package in PEERS.items() if importlib.util.find_spec(package))]


def describe_machine() -> dict[str, str]:
    """Return processor, cores and the versions that affect speed and learning."""
    theirs = {PEERS[side]: version(PEERS[side]) for side in find_sides() if side in PEERS}
    for name in _SIMULATORS:
        with suppress(PackageNotFoundError):
            theirs[name] = version(name)
    return {"cpu": read_cpu_name(), "cores": str(usable_cores())} | versions() | theirs


def run_jobs(
    jobs: Sequence[TrainingJob],
    *,
    at_once: int,
    keep: Callable[[TrainingJob, TrainingResult], None] = lambda job, result: None,
) -> list[tuple[TrainingJob, TrainingResult]]:
    """Run the jobs in their order, `at_once` in parallel; WorkerError if one fails.

    keep: called with each result as it arrives, one call at a time.
    """
    with TemporaryDirectory(prefix="mission-gym-bench-") as folder:
        children = _Children(Path(folder), len(jobs), keep)
        with ThreadPoolExecutor(at_once) as pool:
            futures = [pool.submit(children.run, number, job) for number, job in enumerate(jobs, 1)]
            try:
                return [(job, future.result()) for job, future in zip(jobs, futures, strict=True)]
            except BaseException:  # also Ctrl-C: the pool would wait for its threads
                pool.shutdown(wait=False, cancel_futures=True)
                children.kill()
                raise


def group_by_side(
    results: Iterable[tuple[TrainingJob, TrainingResult]], env_id: str | None = None
) -> dict[str, list[TrainingResult]]:
    """Group results by side and form, in the order of the jobs. env_id: only those of one environment."""
    grouped: dict[str, list[TrainingResult]] = {}
    for job, result in results:
        if env_id in (None, job.env_id):
            grouped.setdefault(job.name, []).append(result)
    return grouped


class _Children:
    """The running processes."""

    def __init__(
        self, folder: Path, num_jobs: int, keep: Callable[[TrainingJob, TrainingResult], None]
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._num_jobs = num_jobs
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._killed = False

    def run(self, number: int, job: TrainingJob) -> TrainingResult:
        """Run one job in its own process, and wait for it."""
        folder = self._folder / str(number)
        folder.mkdir()
        begun = time.perf_counter()
        with (folder / "log.txt").open("w") as log:
            child = self._start(folder, log)
            with child:  # leaving it closes stdin, so a failure here ends the child
                assert child.stdin is not None
                child.stdin.write(json.dumps(asdict(job)) + "\n")
                child.stdin.flush()
                code = child.wait()
        wall_s = time.perf_counter() - begun
        with self._lock:
            self._running.discard(child)
        if code:
            tail = (folder / "log.txt").read_text()[-_LOG_TAIL:].strip()
            raise WorkerError(f"{job} ended with code {code}; the end of its output:\n{tail}")
        print(f"[{number}/{self._num_jobs}] {job}: {wall_s:.1f} s", file=sys.stderr)
        stored = read_json(folder / "result.json")
        evals = [Evaluation(*item) for item in stored["evals"]]
        result = TrainingResult(**(stored | {"evals": evals, "wall_s": wall_s}))
        with self._lock:
            self._keep(job, result)
        return result

    def _start(self, folder: Path, log: Any) -> subprocess.Popen[str]:
        with self._lock:
            if self._killed:
                raise WorkerError("another job has failed")
            child = subprocess.Popen(
                make_child_command(folder),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | _ONE_THREAD,
                text=True,
            )
            self._running.add(child)
        return child

    def kill(self) -> None:
        """Kill every process, and start no more."""
        with self._lock:
            self._killed = True
            for child in self._running:
                child.kill()


def make_child_command(folder: Path) -> list[str]:
    """Return the command of a child process that calls `run_child`."""
    code = "import sys; from mission_gym_bench.runner import run_child; run_child(sys.argv[1])"
    return [sys.executable, "-c", code, str(folder)]


def run_child(folder: str) -> None:
    """Run the job in the first line of stdin (JSON), and write its result to the folder.

    The parent keeps stdin open. When it closes, the parent has ended, and this process ends too.
    """
    job = TrainingJob(**json.loads(sys.stdin.readline()))
    os.chdir(folder)  # some simulators write logs to the current folder
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    write_json(Path(folder) / "result.json", asdict(job.run(Path(folder))), durable=False)


def _end_with_parent() -> None:
    # Unbuffered: a thread that waits inside sys.stdin would hold its lock when the interpreter ends.
    os.read(0, 1)
    os._exit(1)


def make_row(
    case: str,
    ours: float | None,
    unit: str,
    peers: Mapping[str, float | None] | None = None,
    ratio: float | None = None,
    **more: Any,
) -> Row:
    """Return a row; `more` are further keys."""
    return {"case": case, "ours": ours, "peers": dict(peers or {}), "ratio": ratio, "unit": unit} | more


def compare_sides(
    case: str, unit: str, numbers: Mapping[str, Sequence[float | None]], *, more_is_better: bool
) -> Row:
    """Return a row of medians and spreads by side. ratio: how many times better ours is than the best peer.

    A missing number (the goal was not reached) is worse than every other; a missing median is None.
    """
    worst = -math.inf if more_is_better else math.inf
    filled = {
        side: [worst if number is None else number for number in column] for side, column in numbers.items()
    }
    medians = {side: _finite(statistics.median(column)) for side, column in filled.items()}
    ours = medians[OURS]
    rivals = [number for side, number in medians.items() if side != OURS and number is not None]
    ratio = None
    if ours and rivals:
        ratio = ours / max(rivals) if more_is_better else min(rivals) / ours
    absent = [peer for peer in PEERS if peer not in medians]
    return make_row(
        case,
        ours,
        unit,
        {peer: medians.get(peer) for peer in PEERS},
        ratio,
        spread={side: [_finite(min(column)), _finite(max(column))] for side, column in filled.items()},
        note="; ".join(f"{peer} is not installed: pip install mission-gym[{peer}]" for peer in absent),
    )


def find_medians(rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each column."""
    return {name: statistics.median(column) for name, column in rates.items()}


def find_spreads(rates: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the lowest and highest number of each column."""
    return {name: [min(column), max(column)] for name, column in rates.items()}


def measure_in_turn(measures: Mapping[str, Measure], seconds: float, repeats: int) -> dict[str, list[float]]:
    """Return the rates of each, measured in turn so that a slow minute of the machine slows all."""
    rates: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            rates[name].append(measure(seconds))
    return rates


def repeat_work(work: Callable[[], int], threads: int, seconds: float) -> float:
    """Return the steps per second of repeated work, which returns the steps it made."""
    import torch

    torch.set_num_threads(threads)  # one process runs all sides
    count, begun = 0, time.perf_counter()
    while not count or time.perf_counter() - begun < seconds:
        count += work()
    return count / (time.perf_counter() - begun)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
