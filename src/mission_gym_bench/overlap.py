"""`bench overlap`: the time gained by collecting during learning, and its cost in learning.

Time: environments that wait 20 ms per step, with a learner of about the same cost; the time of an update over
the longer of collecting and learning alone. Learning: on compared with off at equal steps.
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
from mission_gym_bench.runner import (
    OURS,
    Row,
    TrainingJob,
    TrainingResult,
    find_medians,
    find_spreads,
    group_by_side,
    make_row,
    run_jobs,
)

_OFF = "overlap off"
_TARGET = 1.15  # time of an overlapped update, relative to the longer phase
_TRIAL_EPOCHS = 4
_NUM_EVALS = 2


@dataclass(frozen=True, slots=True)
class OverlapGrid:
    """What is measured. cases: environments and steps of the learning comparison."""

    cases: tuple[tuple[str, int], ...] = (
        ("Acrobot-v1", 200_000),
        ("CartPole-v1", 100_000),
        ("Pendulum-v1", 100_000),
    )
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    n_envs: int = 64
    n_steps: int = 32
    wait_s: float = 0.02
    env: str = "mission_gym_bench.synthetic:Burn"
    vector: str = "threads"
    longer: float = 1.0  # time of learning relative to collecting
    num_updates: int = 8
    repeats: int = 3


class Timing(NamedTuple):
    """Seconds of an update, medians over a run."""

    collect_s: float
    learn_s: float
    wall_s: float


def measure_overlap(grid: OverlapGrid) -> list[Row]:
    """One row for the time, and one per learning case."""
    return [measure_time(grid), *_measure_learning(grid)]


def measure_time(grid: OverlapGrid) -> Row:
    """Measure overlapped updates relative to the longer of both phases alone."""
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
    medians = find_medians(shares)
    # The same relative to the phases as they run in parallel, when they may slow each other down.
    own = [each.wall_s / max(each.collect_s, each.learn_s) for each in timings["on"]]
    return make_row(
        f"{grid.n_envs} environments that wait {1000 * grid.wait_s:g} ms, {n_epochs} epochs",
        medians["on"],
        "update / max(collect, learn)",
        {_OFF: medians["off"]},
        medians["off"] / medians["on"],
        vector=grid.vector,
        target=_TARGET,
        spread=find_spreads(shares),
        collect_s=alone.collect_s,
        learn_s=alone.learn_s,
        over_phases_side_by_side=own,
        learner_busy=statistics.median(each.learn_s / each.wall_s for each in timings["on"]),
    )


def _time_run(grid: OverlapGrid, overlap: str, n_epochs: int) -> Timing:
    """Train; the first update, which does not overlap, and the last one do not count."""
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
        TrainingJob(
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
        make_overlap_row(f"{env_id}, {timesteps:,} steps", group_by_side(results, env_id))
        for env_id, timesteps in grid.cases
    ]


def make_overlap_row(case: str, results: Mapping[str, Sequence[TrainingResult]]) -> Row:
    """Return the mean returns of the last evaluation, on and off.

    The difference is in units of the pooled standard deviation.
    """
    on, off = ([each.evals[-1].return_mean for each in results[f"{OURS} {form}"]] for form in ("on", "off"))
    difference = statistics.mean(on) - statistics.mean(off)
    spread = ((_variance(on) + _variance(off)) / 2) ** 0.5
    return make_row(
        case,
        statistics.mean(on),
        "return",
        {_OFF: statistics.mean(off)},
        pooled_deviation=spread,
        difference_in_deviations=difference / spread if spread else None if difference else 0.0,
        returns={"on": on, "off": off},
        mean_of_evaluations={
            form: [statistics.mean(e.return_mean for e in each.evals) for each in results[f"{OURS} {form}"]]
            for form in ("on", "off")
        },
    )


def _variance(numbers: Sequence[float]) -> float:
    return statistics.variance(numbers) if len(numbers) > 1 else 0.0
