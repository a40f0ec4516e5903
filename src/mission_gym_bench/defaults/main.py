"""`bench defaults`: the rows. What environments without shipped settings reach with our defaults and peers'.

Scores are of the final policy after equal steps; the ratio is (ours - random) / (best peer - random). Also
the seconds on one core until ours reaches the median of a peer's final scores. Peers' numbers are stored as
data; `trials.py` measures them again. The short form has fewer cases and seeds, but all steps, because peers'
final scores are those of whole budgets.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mission_gym.intervals import LEVEL, compare_means
from mission_gym.procs.machine import read_cpu_name
from mission_gym_bench.defaults.trials import (
    CASES,
    PEERS,
    DefaultsCase,
    DefaultsTrial,
    measure_trials,
    read_trials,
)
from mission_gym_bench.runner import OURS, Row, make_row

_SHORT = ("lunar_lander", "pendulum", "cart_pole", "LargeRewards", "RarePrizes", "SparseGoal", "Continuing")
SHORT_CASES = tuple(case for case in CASES if case.name in _SHORT)


@dataclass(frozen=True, slots=True)
class DefaultsGrid:
    """What is measured."""

    cases: tuple[DefaultsCase, ...] = SHORT_CASES
    seeds: tuple[int, ...] = (1, 2)
    report_episodes: int = 100


def measure_defaults(grid: DefaultsGrid) -> list[Row]:
    """One row per case."""
    machine, kept = read_trials()
    there = [case for case in grid.cases if case.is_there]
    ours = measure_trials([OURS], there, grid.seeds, report_episodes=grid.report_episodes)
    if read_cpu_name() != machine["cpu"]:
        print(f"peers' seconds are from another processor, {machine['cpu']}; see trials.py", file=sys.stderr)
    rows = []
    for case in grid.cases:
        trials = [each for each in (*ours, *kept) if each.case == case.name]
        by_side = {side: [each for each in trials if each.side == side] for side in (OURS, *PEERS)}
        rows.append(make_defaults_row(case, by_side) | {"peers_machine": machine})
    return rows


def make_defaults_row(case: DefaultsCase, trials: Mapping[str, Sequence[DefaultsTrial]]) -> Row:
    """Return the row of one case. trials: by side, one per seed; a side may have none."""
    scores = {side: [each.score for each in column] for side, column in trials.items() if column}
    means = {side: statistics.fmean(column) for side, column in scores.items()}
    ours, peers = means.get(OURS), [peer for peer in PEERS if peer in means]
    best = max((means[peer] for peer in peers), default=case.random)
    notes = [] if case.is_there else [f"left out: pip install mission-gym[{case.extra}]"]
    notes += [f"{peer} was not measured" for peer in PEERS if peer not in peers]
    return make_row(
        f"{case.name}, {case.timesteps:,} steps",
        ours,
        "return",
        {peer: means.get(peer) for peer in PEERS},
        (ours - case.random) / (best - case.random) if ours is not None and best > case.random else None,
        verdict={peer: judge(scores[OURS], scores[peer]) for peer in peers if OURS in scores},
        scores=scores,
        random=case.random,
        known=case.known,
        steps_per_s={side: _find_rate(column) for side, column in trials.items() if column},
        s_to_score={
            peer: _compare_times(trials[OURS], trials[peer])
            for peer in peers
            if ours is not None
            and min(scores[peer]) > case.random  # a peer that learned nothing sets no goal
        },
        note="; ".join(notes),
    )


def judge(ours: Sequence[float], peer: Sequence[float]) -> str:
    """Return whether ours is better or worse by an exact permutation test; it needs five seeds on each
    side."""
    p_value = compare_means(ours, peer)
    if p_value is None:
        return "too few seeds"
    if p_value >= LEVEL:
        return "no difference shown"
    return "better" if statistics.fmean(ours) > statistics.fmean(peer) else "worse"


def _find_rate(trials: Sequence[DefaultsTrial]) -> float:
    """Return the steps per second on one core: the highest of the seeds, since other processes only slow
    it."""
    return max(each.steps / each.train_s for each in trials)


def _compare_times(ours: Sequence[DefaultsTrial], peer: Sequence[DefaultsTrial]) -> dict[str, float | None]:
    """Return the median seconds until an exam reaches the median of the peer's final scores; None: never.

    A peer that ends above all its exams needed all its steps.
    """
    score = statistics.median(each.score for each in peer)
    ours_s = _find_time(ours, score, [math.inf] * len(ours))
    peer_s = _find_time(peer, score, [each.steps for each in peer])
    reached = math.isfinite(ours_s)
    return {
        "score": score,
        "ours": ours_s if reached else None,
        "peer": peer_s,
        "ratio": peer_s / ours_s if reached else None,
    }


def _find_time(trials: Sequence[DefaultsTrial], score: float, otherwise: Sequence[float]) -> float:
    rate = _find_rate(trials)
    steps = [
        next((step for step, mean in each.curve if mean >= score), last)
        for each, last in zip(trials, otherwise, strict=True)
    ]
    return statistics.median(steps) / rate
