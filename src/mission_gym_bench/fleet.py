"""`bench fleet`: many runs packed, compared with one after another and all at once as plain processes.

Makespans are wall seconds of the same command lines, start-up included. The bound of the second row is the
rate of the cores if only environment, acting and learning cost time: their CPU seconds in a run alone,
measured before and after, since machines drift.
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
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.requests import Draft, make_requests
from mission_gym.fleet.schedule import measure_memory
from mission_gym.fleet.wait import wait_for_jobs
from mission_gym.procs import free_memory_bytes, usable_cores
from mission_gym.procs.machine import CORES
from mission_gym.report.charts import draw_curves
from mission_gym.report.pages import make_file
from mission_gym.store.files import disk_errors, write_atomic
from mission_gym.store.groups import Job, JobRequest
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog
from mission_gym_bench.runner import Row, make_row
from mission_gym_bench.synthetic import measure_spins_per_us

_PLOT = Path("bench-results") / "fleet-rate.html"
_LOOK_S = 1.0
_MAKESPAN_SHARE = 0.75  # at most, relative to one after another
_AGGREGATE_SHARE = 0.95  # at least, relative to the bound
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
class _Samples:
    """Samples taken while runs train."""

    rates: list[tuple[float, float]]  # seconds since the start, steps/s of all runs
    memory_bytes: int = 0


def measure_fleet(grid: FleetGrid) -> list[Row]:
    """One row for the makespan, and one for the aggregate rate."""
    return [_measure_makespan(grid), _measure_aggregate(grid)]


def _measure_makespan(grid: FleetGrid) -> Row:
    drafts = [
        *_draft("cartpole", grid.num_cartpole, {"env": "CartPole-v1", "timesteps": grid.cartpole_steps}),
        *_draft("capture", grid.num_capture, {"timesteps": grid.capture_steps}),
    ]
    budget = free_memory_bytes()
    seconds: dict[str, float] = {}
    samples: dict[str, _Samples] = {}
    for name, run in (("packed", _run_packed), ("one_by_one", _run_in_turn), ("all_at_once", _run_at_once)):
        with _requests(drafts) as (folder, requests):
            begun = time.perf_counter()
            samples[name] = run(folder, requests)
            seconds[name] = time.perf_counter() - begun
            print(f"{name}: {seconds[name]:.1f} s", file=sys.stderr)
    _draw(samples)
    ours = seconds.pop("packed")
    memory = samples["packed"].memory_bytes
    within = ours <= min(seconds.values()) and ours <= _MAKESPAN_SHARE * seconds["one_by_one"]
    return make_row(
        f"fleet: makespan of {grid.num_cartpole} CartPole and {grid.num_capture} capture runs",
        ours,
        "s",
        seconds,
        min(seconds.values()) / ours,
        holds=within and memory <= budget,
        memory_max_bytes=memory,
        memory_free_bytes=budget,
        plot=str(_PLOT),
    )


def _measure_aggregate(grid: FleetGrid) -> Row:
    """Measure seeds of an environment of a known cost, relative to the bound of the cores."""
    spins = round(grid.burn_us * measure_spins_per_us())
    values = {
        "env": "mission_gym_bench.synthetic:Burn", "env_kwargs": {"spins": spins}, "eval_freq": 0,
        "timesteps": grid.burn_steps, "tune": False, "trust": True,
    }  # fmt: skip
    before = _measure_alone(values)
    with _requests(_draft("seeds", grid.num_seeds, values)) as (folder, requests):
        begun = time.perf_counter()
        _run_packed(folder, requests)
        seconds = time.perf_counter() - begun
        rows = [_sum_rows(run) for run in _list_runs(folder)]
    after = _measure_alone(values)
    cores = usable_cores()
    # While they train: seeds that are not a multiple of the cores leave some idle at the end.
    ours = cores * sum(row["step"] for row in rows) / sum(row["phase/wall_s"] for row in rows)
    bound = cores * mean((before, after))
    return make_row(
        f"fleet: aggregate rate of {grid.num_seeds} seeds of an environment of {grid.burn_us:g} us",
        ours,
        "steps/s",
        {"bound": bound},
        ours / bound,
        holds=ours >= _AGGREGATE_SHARE * bound,
        bounds=[cores * before, cores * after],
        # Two busy cores may each be slower than one alone; the runs' own CPU time gives another bound.
        of_own_cpu_time=sum(map(_read_cpu_s, rows)) / sum(row["phase/wall_s"] for row in rows),
        seconds=seconds,
    )


def _measure_alone(values: Mapping[str, Any]) -> float:
    """Return the steps per CPU second of environment, acting and learning in a run on one core."""
    with _requests(_draft("alone", 1, values)) as (folder, requests):
        _run_in_turn(folder, requests, cores=1)
        (run,) = _list_runs(folder)
        row = _sum_rows(run)
    return row["step"] / _read_cpu_s(row)


def _read_cpu_s(row: Mapping[str, float]) -> float:
    """Return the CPU seconds of environment, acting and learning."""
    return row["phase/collect_cpu_s"] + row["phase/learn_s"]


def _sum_rows(run: RunDir) -> dict[str, float]:
    """Return the steps of a run, and the seconds of its phases."""
    rows = [row for row in MetricsLog.read(run.metrics_jsonl) if row["event"] == "progress"]
    names = [name for name in rows[0] if name.startswith("phase/")]
    return {"step": rows[-1]["step"]} | {name: sum(row[name] for row in rows) for name in names}


def _draft(name: str, number: int, values: Mapping[str, Any]) -> list[Draft]:
    return [Draft(f"{name}-s{seed}", name, {**values, **_PLAIN}, seed=seed) for seed in range(1, number + 1)]


@contextmanager
def _requests(drafts: Sequence[Draft]) -> Iterator[tuple[Path, list[JobRequest]]]:
    """Open a temporary folder, and requests whose runs are written to it."""
    with TemporaryDirectory(prefix="mission-gym-fleet-") as name:
        yield Path(name), make_requests("bench", drafts, str(Path(name) / "runs"))


def _run_packed(folder: Path, requests: Sequence[JobRequest]) -> _Samples:
    queue = Queue(folder / "queue")
    group = queue.make_group(folder / "runs", "bench", "jobs", requests)
    samples = _Samples([])
    see = _make_sampler(folder, samples)

    def watch(jobs: Mapping[str, Job]) -> None:
        living = [job for job in jobs.values() if job.state == "starting"]
        see([pid for job in living if (pid := group.read_pid(job)) is not None])

    jobs = wait_for_jobs(queue, group, [each.name for each in requests], watch=watch)
    failed = [f"{job.name}: {job.cause}" for job in jobs.values() if job.state != "done"]
    if failed:
        raise WorkerError("; ".join(failed))
    return samples


def _run_in_turn(folder: Path, requests: Sequence[JobRequest], *, cores: int = 0) -> _Samples:
    """Run one after another. cores: the share that each is planned for, 0 for the whole machine."""
    samples = _Samples([])
    see = _make_sampler(folder, samples)
    for request in requests:
        _wait([_start(folder, request, cores)], see)
    return samples


def _run_at_once(folder: Path, requests: Sequence[JobRequest]) -> _Samples:
    samples = _Samples([])
    _wait([_start(folder, request) for request in requests], _make_sampler(folder, samples))
    return samples


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


def _make_sampler(folder: Path, samples: _Samples) -> Callable[[Sequence[int]], None]:
    """Return a function that samples the steps and the memory of all runs about once per second."""
    begun = last = time.perf_counter()
    before = 0

    def see(pids: Sequence[int]) -> None:
        nonlocal last, before
        now = time.perf_counter()
        if now - last < _LOOK_S:
            return
        steps = sum(run.read_status().get("step") or 0 for run in _list_runs(folder))
        samples.rates.append((now - begun, max(0, steps - before) / (now - last)))
        samples.memory_bytes = max(
            samples.memory_bytes, sum(measure_memory(pid, {}).memory_bytes for pid in pids)
        )
        last, before = now, steps

    return see


def _list_runs(folder: Path) -> list[RunDir]:
    runs_dir = folder / "runs"
    paths = runs_dir.iterdir() if runs_dir.is_dir() else ()
    return [run for run in map(RunDir, paths) if run.status_json.exists()]


def _draw(samples: Mapping[str, _Samples]) -> None:
    rates = {name: each.rates for name, each in samples.items()}
    chart = draw_curves("steps/s of all runs over seconds", rates)
    with disk_errors(_PLOT):
        _PLOT.parent.mkdir(exist_ok=True)
    write_atomic(_PLOT, make_file("bench fleet", chart))
