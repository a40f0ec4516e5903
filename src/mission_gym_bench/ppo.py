"""`bench ppo`: steps per second of the whole training loop. `bench learning`: do the shipped settings learn?

ppo: all epochs, the sides in turn. Ours runs on one core and on all; a peer in every form that people use,
and its best form counts. The first update is warm-up. Everything after it counts: collecting, learning,
recording and the last checkpoint. learning: seconds of training until the first evaluation whose mean reaches
the threshold, without evaluations. Returns are those of the best policy on the report suite. One thread each,
two processes at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from mission_gym.procs import usable_cores
from mission_gym_bench.runner import (
    OURS,
    PEERS,
    Evaluation,
    Row,
    TrainingJob,
    TrainingResult,
    compare_sides,
    find_sides,
    group_by_side,
    run_jobs,
)

_CHECKPOINT_FREQ = 50_000  # as in a run of the default length; one this short would save at every update
_ONE_CORE, _ALL_CORES = "on one core", "on all cores"


@dataclass(frozen=True, slots=True)
class PpoCase:
    """An environment and the sizes of its updates."""

    env_id: str
    n_envs: int
    n_steps: int
    batch_size: int
    n_epochs: int
    num_updates: int  # after the warm-up

    def __str__(self) -> str:
        sizes = f"{self.n_envs} x {self.n_steps}, batch {self.batch_size}, {self.n_epochs} epochs"
        return f"{self.env_id}, {sizes}"


CASES = (
    PpoCase("CartPole-v1", 32, 128, 512, 10, num_updates=10),
    PpoCase("CartPole-v1", 32, 128, 64, 10, num_updates=5),
    PpoCase("LunarLander-v3", 16, 128, 64, 4, num_updates=10),
)


@dataclass(frozen=True, slots=True)
class PpoGrid:
    """What is measured."""

    cases: tuple[PpoCase, ...] = CASES
    repeats: int = 3


def measure_ppo(grid: PpoGrid) -> list[Row]:
    """Two rows per case: ours on one core, and on all."""
    return [row for case in grid.cases for row in _measure(case, grid.repeats)]


def _measure(case: PpoCase, repeats: int) -> list[Row]:
    total = case.n_envs * case.n_steps * (1 + case.num_updates)
    flags = {
        "n_envs": case.n_envs, "n_steps_per_env": case.n_steps, "batch_size": case.batch_size,
        "n_epochs": case.n_epochs, "network_arch": "64,64", "activation": "tanh", "timesteps": total,
        "learning_rate": 3e-4, "learning_rate_final": None, "clip_range": 0.2, "clip_range_final": None,
        "gamma": 0.99, "gae_lambda": 0.95, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5,
        "target_kl": None, "normalize_obs": False, "normalize_returns": False,
        "eval_freq": 0, "checkpoint_freq": _CHECKPOINT_FREQ, "device": "cpu", "threads": 1,
    }  # fmt: skip
    forms = _list_forms(case.env_id, flags)
    jobs = [
        replace(form, flags=form.flags | {"seed": seed})
        for seed in range(1, repeats + 1)
        for form in forms
        if seed == 1 or not form.subproc  # its processes take a minute to start, so one run is enough
    ]
    results = run_jobs(jobs, at_once=1)
    check_gradient_steps(results, total // case.batch_size * case.n_epochs)
    by_form = group_by_side(results)
    peers = _find_best_forms(by_form)
    return [
        _make_row(f"{case}, {form}", {OURS: by_form[f"{OURS} {form}"]} | peers, by_form)
        for form in (_ONE_CORE, _ALL_CORES)
    ]


def check_gradient_steps(results: Sequence[tuple[TrainingJob, TrainingResult]], expected: int) -> None:
    """All sides must have made the same gradient steps."""
    for job, result in results:
        assert result.gradient_steps == expected, f"{job} made {result.gradient_steps}, not {expected}"


def _list_forms(env_id: str, flags: dict[str, Any]) -> list[TrainingJob]:
    """Return each side in each of its forms, without seeds."""
    workers = {"vector": "workers", "num_workers": usable_cores(), "threads": "auto"}
    forms = [
        TrainingJob(OURS, env_id, flags | {"vector": "serial"}, form=_ONE_CORE),
        TrainingJob(OURS, env_id, flags | workers, form=_ALL_CORES),
    ]
    cores = usable_cores()
    for side in find_sides():
        if side != OURS:
            forms += [
                TrainingJob(side, env_id, flags, form="Dummy, 1 thread"),
                TrainingJob(side, env_id, flags, form=f"Dummy, {cores} threads", threads=cores),
                TrainingJob(side, env_id, flags, form="Subproc, 1 thread", subproc=True),
            ]
    return forms


def _find_best_forms(by_form: dict[str, list[TrainingResult]]) -> dict[str, list[TrainingResult]]:
    """Return the form of each peer with the highest median rate, under the peer's name."""
    best: dict[str, list[TrainingResult]] = {}
    for peer in PEERS:
        columns = [column for name, column in by_form.items() if name.startswith(f"{peer} ")]
        if columns:
            best[peer] = max(columns, key=lambda column: median(_rates(column)))
    return best


def _rates(column: list[TrainingResult]) -> list[float]:
    return [each.steps_per_s for each in column]


def _make_row(
    case: str, sides: dict[str, list[TrainingResult]], by_form: dict[str, list[TrainingResult]]
) -> Row:
    rates = {side: _rates(column) for side, column in sides.items()}
    return compare_sides(case, "steps/s", rates, more_is_better=True) | {
        "forms": {name: round(median(_rates(column))) for name, column in by_form.items()},
        "gradient_steps": {side: [each.gradient_steps for each in column] for side, column in sides.items()},
        "returns": {side: [each.return_mean for each in column] for side, column in sides.items()},
        "wall_s": {side: [each.wall_s for each in column] for side, column in sides.items()},
    }


@dataclass(frozen=True, slots=True)
class LearningCase:
    """An environment, its budget and the return that counts as learned."""

    env_id: str
    timesteps: int
    threshold: float

    @property
    def evaluations(self) -> dict[str, int]:
        """All sides evaluate at the same steps; ours would wait if episodes are long."""
        return {"eval_freq": max(20_000, self.timesteps // 50)}


# The longest first, so that the short ones fill the end of the second process.
SHORT_CASES = (
    LearningCase("Acrobot-v1", 500_000, -95.0),
    LearningCase("CartPole-v1", 100_000, 475.0),
    LearningCase("Pendulum-v1", 100_000, -250.0),
)
ALL_CASES = (LearningCase("LunarLander-v3", 1_000_000, 200.0), *SHORT_CASES)


@dataclass(frozen=True, slots=True)
class LearningGrid:
    """What is measured."""

    cases: tuple[LearningCase, ...] = SHORT_CASES
    seeds: tuple[int, ...] = (1, 2)
    report_episodes: int = 100


def measure_learning(grid: LearningGrid) -> list[Row]:
    """One row per case."""
    sides = find_sides()
    jobs = [
        TrainingJob(
            side,
            case.env_id,
            {"timesteps": case.timesteps, "seed": seed, "device": "cpu", "threads": 1} | case.evaluations,
            grid.report_episodes,
        )
        for case in grid.cases
        for seed in grid.seeds
        for side in sides
    ]
    results = run_jobs(jobs, at_once=min(2, usable_cores()))
    return [make_learning_row(case, group_by_side(results, case.env_id)) for case in grid.cases]


def make_learning_row(case: LearningCase, results: Mapping[str, Sequence[TrainingResult]]) -> Row:
    """Return the row of one case; results by side, one per seed."""
    reached = {
        side: [_find_reached(each.evals, case.threshold) for each in column]
        for side, column in results.items()
    }
    seconds = {side: [each and each.train_s for each in column] for side, column in reached.items()}
    name = f"{case.env_id} to {case.threshold:g} within {case.timesteps:,} steps"
    row = compare_sides(name, "s to score", seconds, more_is_better=False)
    row["steps_to_score"] = {
        side: [each and each.step for each in column] for side, column in reached.items()
    }
    for side, column in results.items():
        returns = [each.report_return for each in column]
        passed = sum(number is not None and number >= case.threshold for number in returns)
        row[f"{side}_returns"] = returns
        row["passed" if side == OURS else f"{side}_passed"] = f"{passed}/{len(returns)}"
    return row


def _find_reached(evals: Sequence[Evaluation], threshold: float) -> Evaluation | None:
    return next((each for each in evals if each.return_mean >= threshold), None)
