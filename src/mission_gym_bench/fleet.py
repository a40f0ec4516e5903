"""`bench fleet`: many runs packed, against one after another and all at once as plain processes.

Makespans are wall seconds of the same command lines, start-up and all. The bound of the second row is what
the cores could do if nothing but environment, acting and learning cost anything: its seconds of CPU are those
of a run alone, before and after, since machines drift.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from mission_gym.errors import WorkerError
from mission_gym.fleet.drafts import Draft
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.requests import make_requests
from mission_gym.fleet.usage import measure_memory
from mission_gym.fleet.wait import wait_for_jobs
from mission_gym.procs import free_memory_bytes, usable_cores
from mission_gym.procs.machine import CORES
from mission_gym.report.charts import draw_curves
from mission_gym.report.pages import make_file
from mission_gym.store.files import disk_errors, write_atomic
from mission_gym.store.groups import GroupDir, Job, JobRequest
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog
from mission_gym_bench.burn import measure_spins_per_us
from mission_gym_bench.contest import Row

_PLOT = Path("bench-results") / "fleet-rate.html"
_LOOK_S = 1.0
_MAKESPAN_SHARE = 0.75  # of one after another, at most
_AGGREGATE_SHARE = 0.95  # of the bound, at least
_PLAIN = {"tensorboard": False, "device": "cpu"}


@dataclass(frozen=True, slots=True)
class FleetGrid:
    """What is measured."""

    num_cartpole: int = 8
    cartpole_steps: int = 100_000
    num_capture: int = 4
    capture_steps: int = 200_000
    num_seeds: int = 5
    burn_us: float = 300.0
    burn_steps: int = 60_000  # 20 s of training


@dataclass
class _Look:
    """What was seen while runs went on."""

    rates: list[tuple[float, float]]  # seconds since the start, steps/s of all
    memory_bytes: int = 0


def measure_fleet(grid: FleetGrid) -> list[Row]:
    """The rows of makespan and of the aggregate rate."""
    return [_measure_makespan(grid), _measure_aggregate(grid)]


def _measure_makespan(grid: FleetGrid) -> Row:
    drafts = [
        *_draft("cartpole", grid.num_cartpole, {"env": "CartPole-v1", "timesteps": grid.cartpole_steps}),
        *_draft("capture", grid.num_capture, {"timesteps": grid.capture_steps}),
    ]
    budget = free_memory_bytes()
    seconds: dict[str, float] = {}
    looks: dict[str, _Look] = {}
    for name, run in (("packed", _run_packed), ("one_by_one", _run_in_turn), ("all_at_once", _run_at_once)):
        with _requests(drafts) as (folder, requests):
            begun = time.perf_counter()
            looks[name] = run(folder, requests)
            seconds[name] = time.perf_counter() - begun
            print(f"{name}: {seconds[name]:.1f} s", file=sys.stderr)
    _draw(looks)
    ours = seconds.pop("packed")
    case = f"makespan of {grid.num_cartpole} CartPole and {grid.num_capture} capture runs"
    row = _row(case, ours, "s", seconds, min(seconds.values()) / ours)
    memory = looks["packed"].memory_bytes
    within = ours <= min(seconds.values()) and ours <= _MAKESPAN_SHARE * seconds["one_by_one"]
    return row | {
        "holds": within and memory <= budget, "memory_max_bytes": memory, "memory_free_bytes": budget,
        "plot": str(_PLOT),
    }  # fmt: skip


def _measure_aggregate(grid: FleetGrid) -> Row:
    """Seeds of an environment of a known cost, against what the cores could do."""
    spins = round(grid.burn_us * measure_spins_per_us())
    values = {
        "env": "mission_gym_bench.burn:Burn", "env_kwargs": {"spins": spins}, "timesteps": grid.burn_steps,
        "eval_freq": 0, "tune": False, "trust": True,
    }  # fmt: skip
    before = _measure_alone(values)
    with _requests(_draft("seeds", grid.num_seeds, values)) as (folder, requests):
        begun = time.perf_counter()
        _run_packed(folder, requests)
        seconds = time.perf_counter() - begun
        rows = [_sum_rows(run) for run in _list_runs(folder)]
    after = _measure_alone(values)
    cores = usable_cores()
    # While they train: seeds that do not divide by the cores leave some of them idle at the end.
    ours = cores * sum(row["step"] for row in rows) / sum(row["phase/wall_s"] for row in rows)
    bound = cores * mean((before, after))
    case = f"aggregate rate of {grid.num_seeds} seeds of an environment of {grid.burn_us:g} us"
    row = _row(case, ours, "steps/s", {"bound": bound}, ours / bound)
    holds = ours >= _AGGREGATE_SHARE * bound
    # Two cores at work may each be slower than one alone: then the runs' own CPU time gives another bound.
    busy = sum(map(_read_cpu_s, rows)) / sum(row["phase/wall_s"] for row in rows)
    return row | {
        "holds": holds, "bounds": [cores * before, cores * after], "of_own_cpu_time": busy,
        "seconds": seconds,
    }  # fmt: skip


def _measure_alone(values: Mapping[str, Any]) -> float:
    """Steps for each second of CPU that environment, acting and learning take in a run on one core."""
    with _requests(_draft("alone", 1, values)) as (folder, requests):
        _run_in_turn(folder, requests, cores=1)
        (run,) = _list_runs(folder)
        row = _sum_rows(run)
    return row["step"] / _read_cpu_s(row)


def _read_cpu_s(row: Mapping[str, float]) -> float:
    """What environment, acting and learning took, on one core each."""
    return row["phase/collect_cpu_s"] + row["phase/learn_s"]


def _sum_rows(run: RunDir) -> dict[str, float]:
    """The steps of a run, and the seconds of its phases."""
    rows = [row for row in MetricsLog.read(run.metrics_jsonl) if row["event"] == "progress"]
    names = [name for name in rows[0] if name.startswith("phase/")]
    return {"step": rows[-1]["step"]} | {name: sum(row[name] for row in rows) for name in names}


def _draft(name: str, number: int, values: Mapping[str, Any]) -> list[Draft]:
    return [Draft(f"{name}-s{seed}", name, {**values, **_PLAIN}, seed=seed) for seed in range(1, number + 1)]


@contextmanager
def _requests(drafts: Sequence[Draft]) -> Iterator[tuple[Path, list[JobRequest]]]:
    """A folder for the time of a measurement, and requests whose runs lie in it."""
    with TemporaryDirectory(prefix="mission-gym-fleet-") as name:
        yield Path(name), make_requests("bench", drafts, str(Path(name) / "runs"))


def _run_packed(folder: Path, requests: Sequence[JobRequest]) -> _Look:
    queue = Queue(folder / "queue")
    group = GroupDir.create(folder / "runs", "bench", "jobs", requests)
    queue.register(group)
    look = _Look([])
    see = _make_eye(folder, look)

    def watch(jobs: Mapping[str, Job]) -> None:
        living = [job for job in jobs.values() if job.state == "starting"]
        see([pid for job in living if (pid := group.read_pid(job)) is not None])

    jobs = wait_for_jobs(queue, group, [each.name for each in requests], watch=watch)
    failed = [f"{job.name}: {job.cause}" for job in jobs.values() if job.state != "done"]
    if failed:
        raise WorkerError("; ".join(failed))
    return look


def _run_in_turn(folder: Path, requests: Sequence[JobRequest], *, cores: int = 0) -> _Look:
    """cores: the share that each is planned for, 0 for the whole machine."""
    look = _Look([])
    see = _make_eye(folder, look)
    for request in requests:
        _wait([_start(folder, request, cores)], see)
    return look


def _run_at_once(folder: Path, requests: Sequence[JobRequest]) -> _Look:
    look = _Look([])
    _wait([_start(folder, request) for request in requests], _make_eye(folder, look))
    return look


def _start(folder: Path, request: JobRequest, cores: int = 0) -> subprocess.Popen[bytes]:
    with (folder / f"{request.name}.log").open("wb") as log:
        command = [request.python, "-m", "mission_gym", "train", *request.arguments]
        share = {CORES: str(cores)} if cores else {}
        return subprocess.Popen(command, env=os.environ | share, stdout=log, stderr=log)


def _wait(children: Sequence[subprocess.Popen[bytes]], see: Callable[[Sequence[int]], None]) -> None:
    try:
        while living := [child.pid for child in children if child.poll() is None]:
            see(living)
            time.sleep(_LOOK_S / 4)
    finally:
        for child in children:
            child.kill()
    if any(child.returncode for child in children):
        raise WorkerError("a run of the benchmark failed; see its log")


def _make_eye(folder: Path, look: _Look) -> Callable[[Sequence[int]], None]:
    """Sees, about once a second, the steps that all runs have made and the memory that they take."""
    begun = last = time.perf_counter()
    before = 0

    def see(pids: Sequence[int]) -> None:
        nonlocal last, before
        now = time.perf_counter()
        if now - last < _LOOK_S:
            return
        steps = sum(run.read_status().get("step") or 0 for run in _list_runs(folder))
        look.rates.append((now - begun, max(0, steps - before) / (now - last)))
        look.memory_bytes = max(look.memory_bytes, sum(measure_memory(pid, {}).memory_bytes for pid in pids))
        last, before = now, steps

    return see


def _list_runs(folder: Path) -> list[RunDir]:
    runs_dir = folder / "runs"
    paths = runs_dir.iterdir() if runs_dir.is_dir() else ()
    return [run for run in map(RunDir, paths) if run.status_json.exists()]


def _draw(looks: Mapping[str, _Look]) -> None:
    chart = draw_curves(
        "steps/s of all runs over seconds", {name: look.rates for name, look in looks.items()}
    )
    with disk_errors(_PLOT):
        _PLOT.parent.mkdir(exist_ok=True)
    write_atomic(_PLOT, make_file("bench fleet", chart))


def _row(case: str, ours: float, unit: str, peers: Mapping[str, float], ratio: float | None) -> Row:
    return {"case": f"fleet: {case}", "ours": ours, "peers": dict(peers), "ratio": ratio, "unit": unit}
