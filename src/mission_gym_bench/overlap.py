"""`bench overlap`: what collecting beside learning gains in time, and what it costs in learning.

Time: environments that wait 20 ms a step, with a learner of about the same cost; the time of an update over
the larger of collecting and learning, each as it is alone. Learning: on against off at equal steps.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from mission_gym.procs import usable_cores
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from mission_gym_bench.contest import OURS, Row, group_by_side, run_jobs
from mission_gym_bench.sides import Job, Result

_OFF = "overlap off"
_TARGET = 1.15  # of the larger phase, that an overlapped update may take
_TRIAL_EPOCHS = 4
_NUM_EVALS = 2


@dataclass(frozen=True, slots=True)
class OverlapGrid:
    """What is measured; an environment with its steps is a case of learning."""

    cases: tuple[tuple[str, int], ...] = (
        ("Acrobot-v1", 200_000),
        ("CartPole-v1", 100_000),
        ("Pendulum-v1", 100_000),
    )
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    n_envs: int = 64
    n_steps: int = 32
    wait_s: float = 0.02
    env: str = "mission_gym_bench.burn:Burn"
    vector: str = "threads"
    longer: float = 1.0  # learning than collecting
    num_updates: int = 8
    repeats: int = 3


class Timing(NamedTuple):
    """Seconds of an update: medians over a run."""

    collect_s: float
    learn_s: float
    wall_s: float


def measure_overlap(grid: OverlapGrid) -> list[Row]:
    """One row for the time, one for each case of learning."""
    return [measure_time(grid), *_measure_learning(grid)]


def measure_time(grid: OverlapGrid) -> Row:
    """Updates beside collecting over the longer of both alone."""
    trial = _time_run(grid, "off", _TRIAL_EPOCHS)
    n_epochs = max(1, round(grid.longer * _TRIAL_EPOCHS * trial.collect_s / trial.learn_s))
    timings: dict[str, list[Timing]] = {"off": [], "on": []}
    for repeat in range(grid.repeats):
        for overlap, made in timings.items():
            made.append(_time_run(grid, overlap, n_epochs))
            print(
                f"{grid.vector}, overlap {overlap}, {repeat + 1}/{grid.repeats}: {made[-1]}", file=sys.stderr
            )
    alone = Timing(*(statistics.median(column) for column in zip(*timings["off"], strict=True)))
    longest_s = max(alone.collect_s, alone.learn_s)
    shares = {name: [each.wall_s / longest_s for each in made] for name, made in timings.items()}
    on, off = statistics.median(shares["on"]), statistics.median(shares["off"])
    # The same against the phases as they are side by side, where they may slow each other down.
    own = [each.wall_s / max(each.collect_s, each.learn_s) for each in timings["on"]]
    return {
        "case": f"{grid.n_envs} environments that wait {1000 * grid.wait_s:g} ms, {n_epochs} epochs",
        "vector": grid.vector,
        "ours": on, "peers": {_OFF: off}, "ratio": off / on, "unit": "update / max(collect, learn)",
        "target": _TARGET, "spread": {name: [min(made), max(made)] for name, made in shares.items()},
        "collect_s": alone.collect_s, "learn_s": alone.learn_s, "over_phases_side_by_side": own,
        "learner_busy": statistics.median(each.learn_s / each.wall_s for each in timings["on"]),
    }  # fmt: skip


def _time_run(grid: OverlapGrid, overlap: str, n_epochs: int) -> Timing:
    """Train; the first update, which has nothing beside it, and the last one do not count."""
    flags: dict[str, Any] = {
        "env_kwargs": {"wait_s": grid.wait_s}, "vector": grid.vector, "n_envs": grid.n_envs,
        "n_steps_per_env": grid.n_steps, "n_epochs": n_epochs, "network_arch": "256,256", "threads": 1,
        "timesteps": grid.n_envs * grid.n_steps * (grid.num_updates + 2), "eval_freq": 0, "device": "cpu",
        "checkpoint_freq": 10_000_000, "tensorboard": False, "overlap": overlap, "seed": 1,
    }  # fmt: skip
    ends, phases = [], []
    with TemporaryDirectory(prefix="mission-gym-bench-") as folder:
        resolved = resolve(grid.env, flags | {"runs_dir": folder})
        with start_run(resolved, lambda event: None) as session:
            for progress in session.updates():
                ends.append(time.perf_counter())
                phases.append(progress.phases.seconds)
    walls = [end - start for start, end in pairwise(ends[:-1])]
    counted = phases[1:-1]
    return Timing(
        statistics.median(each["collector", "collect"] for each in counted),
        statistics.median(each["learner", "update"] for each in counted),
        statistics.median(walls),
    )


def _measure_learning(grid: OverlapGrid) -> list[Row]:
    jobs = [
        Job(
            OURS,
            env_id,
            {
                "timesteps": timesteps, "seed": seed, "device": "cpu", "threads": 1, "overlap": overlap,
                "eval_freq": timesteps // _NUM_EVALS, "eval_episodes": 50,
            },
            form=overlap,
        )
        for env_id, timesteps in grid.cases
        for seed in grid.seeds
        for overlap in ("on", "off")
    ]  # fmt: skip
    results = run_jobs(jobs, at_once=min(2, usable_cores()))
    return [
        make_overlap_row(
            f"{env_id}, {timesteps:,} steps",
            group_by_side(pair for pair in results if pair[0].env_id == env_id),
        )
        for env_id, timesteps in grid.cases
    ]


def make_overlap_row(case: str, results: Mapping[str, Sequence[Result]]) -> Row:
    """Mean returns of the last evaluation, on against off, and their difference in pooled deviations."""
    on, off = ([each.evals[-1].return_mean for each in results[f"{OURS} {form}"]] for form in ("on", "off"))
    difference = statistics.mean(on) - statistics.mean(off)
    spread = ((_variance(on) + _variance(off)) / 2) ** 0.5
    return {
        "case": case, "ours": statistics.mean(on), "peers": {_OFF: statistics.mean(off)}, "ratio": None,
        "unit": "return", "pooled_deviation": spread,
        "difference_in_deviations": difference / spread if spread else None if difference else 0.0,
        "returns": {"on": on, "off": off},
        "mean_of_evaluations": {
            form: [statistics.mean(e.return_mean for e in each.evals) for each in results[f"{OURS} {form}"]]
            for form in ("on", "off")
        },
    }  # fmt: skip


def _variance(numbers: Sequence[float]) -> float:
    return statistics.variance(numbers) if len(numbers) > 1 else 0.0
