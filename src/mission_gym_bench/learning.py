"""`bench learning`: do the shipped settings learn, on how many seeds, and in what time?

Seconds are those of training up to the first evaluation whose mean reaches the threshold, evaluations
left out. Returns are of the best policy on the report suite. One thread each, two processes at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mission_gym.procs import usable_cores
from mission_gym_bench.contest import OURS, Row, find_sides, group_by_side, make_row, run_jobs
from mission_gym_bench.sides import Evaluation, Job, Result


@dataclass(frozen=True, slots=True)
class LearningCase:
    """An environment, its budget and the return that counts as learned."""

    env_id: str
    timesteps: int
    threshold: float

    @property
    def evaluations(self) -> dict[str, int]:
        """All sides evaluate at the same steps; ours would wait where episodes are long."""
        return {"eval_freq": max(20_000, self.timesteps // 50)}


# The longest first: two at a time, the short ones fill the end.
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
        Job(
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
    return [
        make_learning_row(case, group_by_side(pair for pair in results if pair[0].env_id == case.env_id))
        for case in grid.cases
    ]


def make_learning_row(case: LearningCase, results: Mapping[str, Sequence[Result]]) -> Row:
    """The row of one case; results by side, one per seed."""
    reached = {
        side: [_find_reached(each.evals, case.threshold) for each in column]
        for side, column in results.items()
    }
    seconds = {side: [each and each.train_s for each in column] for side, column in reached.items()}
    row = make_row(
        f"{case.env_id} to {case.threshold:g} within {case.timesteps:,} steps",
        "s to score",
        seconds,
        more_is_better=False,
    )
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
