"""Runs the jobs of a contest in fresh processes, and makes rows of the results.

Fresh processes keep threads, caches and imports of the sides apart. None outlives the contest, and
their files are in a folder that ends with it.
"""

from __future__ import annotations

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
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mission_gym.errors import WorkerError
from mission_gym.procs import usable_cores
from mission_gym.procs.machine import read_cpu_name, versions
from mission_gym.store.files import read_json
from mission_gym_bench.sides import Evaluation, Job, Result

Row = dict[str, Any]
OURS = "ours"
PEERS = {"sb3": "stable_baselines3"}  # side and extra -> the package that it needs
_WORLDS = ("box2d", "box2d-py", "mujoco")  # distributions that environments are made of
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_LOG_TAIL = 2000  # characters of a failed child's output


def find_sides() -> list[str]:
    """Ours and the peers that are installed."""
    return [OURS, *(peer for peer, package in PEERS.items() if importlib.util.find_spec(package))]


def describe_machine() -> dict[str, str]:
    """Processor, cores and the versions that speed and learning depend on."""
    theirs = {PEERS[side]: version(PEERS[side]) for side in find_sides() if side in PEERS}
    for name in _WORLDS:
        with suppress(PackageNotFoundError):
            theirs[name] = version(name)
    return {"cpu": read_cpu_name(), "cores": str(usable_cores())} | versions() | theirs


def run_jobs(
    jobs: Sequence[Job], *, at_once: int, keep: Callable[[Job, Result], None] = lambda job, result: None
) -> list[tuple[Job, Result]]:
    """Start the jobs in their order, `at_once` side by side; WorkerError if one fails. keep: called with each
    result as it arrives, never twice at once."""
    with TemporaryDirectory(prefix="mission-gym-bench-") as folder:
        children = _Children(Path(folder), len(jobs), keep)
        with ThreadPoolExecutor(at_once) as pool:
            futures = [pool.submit(children.run, number, job) for number, job in enumerate(jobs, 1)]
            try:
                return [(job, future.result()) for job, future in zip(jobs, futures, strict=True)]
            except BaseException:  # Ctrl-C too: the pool would wait for its threads
                pool.shutdown(wait=False, cancel_futures=True)
                children.kill()
                raise


def group_by_side(results: Iterable[tuple[Job, Result]]) -> dict[str, list[Result]]:
    """The results of each side and form, in the order of the jobs."""
    grouped: dict[str, list[Result]] = {}
    for job, result in results:
        grouped.setdefault(job.name, []).append(result)
    return grouped


class _Children:
    """The processes under way."""

    def __init__(self, folder: Path, num_jobs: int, keep: Callable[[Job, Result], None]) -> None:
        self._folder = folder
        self._keep = keep
        self._num_jobs = num_jobs
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._killed = False

    def run(self, number: int, job: Job) -> Result:
        """Run one job in a process of its own, and wait for it."""
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
            raise WorkerError(f"{job} ended with code {code}; its last words:\n{tail}")
        print(f"[{number}/{self._num_jobs}] {job}: {wall_s:.1f} s", file=sys.stderr)
        stored = read_json(folder / "result.json")
        evals = [Evaluation(*item) for item in stored["evals"]]
        result = Result(**(stored | {"evals": evals, "wall_s": wall_s}))
        with self._lock:
            self._keep(job, result)
        return result

    def _start(self, folder: Path, log: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mission_gym_bench.contestant", str(folder)]
        with self._lock:
            if self._killed:
                raise WorkerError("the contest is over")
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | _ONE_THREAD,
                text=True,
            )
            self._running.add(child)
        return child

    def kill(self) -> None:
        """End every process, and let no new one start."""
        with self._lock:
            self._killed = True
            for child in self._running:
                child.kill()


def make_row(
    case: str, unit: str, numbers: Mapping[str, Sequence[float | None]], *, more_is_better: bool
) -> Row:
    """Medians and spreads by side. The ratio says how many times better ours is than the best peer.

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
    return {
        "case": case,
        "ours": ours,
        "peers": {peer: medians.get(peer) for peer in PEERS},
        "ratio": ratio,
        "unit": unit,
        "spread": {side: [_finite(min(column)), _finite(max(column))] for side, column in filled.items()},
        "note": "; ".join(f"{peer} is not installed: pip install mission-gym[{peer}]" for peer in absent),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
