"""`bench dqn`: DQN compared with SB3's at equal settings, the cost of priorities, and the replay ratio.

One thread each, one process at a time, the sides in turn. Everything after the first update counts:
collecting, learning, recording and the last checkpoint. SB3's DQN is neither double nor prioritized.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from mission_gym.actions import ActionSpec
from mission_gym.data import EnvSpec, LeafSpec
from mission_gym.learner.replay import Replay, ReplayLayout
from mission_gym.learner.replay_loops import Priorities
from mission_gym.procs import usable_cores
from mission_gym.rollout.blocks import make_block
from mission_gym_bench.ppo import LearningCase, check_gradient_steps, make_learning_row
from mission_gym_bench.runner import (
    OURS,
    Row,
    TrainingJob,
    TrainingResult,
    compare_sides,
    find_sides,
    group_by_side,
    run_jobs,
)

_ENV_ID = "CartPole-v1"
# As in a run of the default length; one this short would save, and write rows, all the time.
_CHECKPOINT_FREQ, _STEPS_PER_ROW = 50_000, 1000
_COMMON: dict[str, Any] = {
    "algo": "dqn", "activation": "relu", "gamma": 0.99, "learning_rate": 1e-3, "learning_rate_final": None,
    "replay_size": 50_000, "target_update_interval": 256, "exploration_fraction": 0.1,
    "exploration_final_eps": 0.05, "n_step": 1, "double": False, "normalize_obs": False,
    "normalize_returns": False, "eval_freq": 0, "device": "cpu", "threads": 1,
    "checkpoint_freq": _CHECKPOINT_FREQ,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayShape:
    """The sizes of one comparison."""

    name: str
    n_envs: int
    n_steps_per_env: int
    replay_ratio: float
    batch_size: int
    network_arch: str

    @property
    def flags(self) -> dict[str, Any]:
        rollout = self.n_envs * self.n_steps_per_env
        return _COMMON | {
            "n_envs": self.n_envs, "n_steps_per_env": self.n_steps_per_env, "batch_size": self.batch_size,
            "replay_ratio": self.replay_ratio, "network_arch": self.network_arch, "learning_starts": rollout,
            "log_interval": -(-_STEPS_PER_ROW // rollout),
        }  # fmt: skip


# SB3's defaults, RL Zoo's settings for CartPole, and eight environments.
SHAPES = (
    ReplayShape("1 x 4, ratio 0.25, batch 32, 64,64", 1, 4, 0.25, 32, "64,64"),
    ReplayShape("1 x 256, ratio 0.5, batch 64, 256,256", 1, 256, 0.5, 64, "256,256"),
    ReplayShape("8 x 8, ratio 0.5, batch 128, 128,128", 8, 8, 0.5, 128, "128,128"),
)


LEARNING = (
    LearningCase("MountainCar-v0", 120_000, -125.0),
    LearningCase("Acrobot-v1", 100_000, -95.0),
    LearningCase("CartPole-v1", 50_000, 450.0),
)


@dataclass(frozen=True, slots=True)
class DqnGrid:
    """What is measured."""

    shapes: tuple[ReplayShape, ...] = SHAPES
    num_steps: int = 30_000  # with fewer, the tenth of a second of the last checkpoint is a large share
    repeats: int = 3
    num_slots: int = 1_000_000
    num_draws: int = 2_000
    env_counts: tuple[int, ...] = (1, 8, 64)
    learning: tuple[LearningCase, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)


def measure_dqn(grid: DqnGrid) -> list[Row]:
    """Two rows per shape (steps/s and gradient steps/s), then priorities, the replay ratio and learning."""
    rows = [row for shape in grid.shapes for row in _measure_shape(shape, grid)]
    return [*rows, *_measure_priorities(grid), _compare_ratios(grid), *_learn(grid)]


def _measure_shape(shape: ReplayShape, grid: DqnGrid) -> list[Row]:
    flags, size = shape.flags, shape.n_envs * shape.n_steps_per_env
    total = size * -(-grid.num_steps // size)
    jobs = [
        TrainingJob(side, _ENV_ID, flags | {"seed": seed, "timesteps": total})
        for seed in range(1, grid.repeats + 1)
        for side in find_sides()
    ]
    results = run_jobs(jobs, at_once=1)
    check_gradient_steps(results, round((total - size) * shape.replay_ratio))
    by_side = group_by_side(results)
    return [
        _rate(f"{_ENV_ID}, {shape.name}", "steps/s", by_side, 1.0),
        _rate(f"{_ENV_ID}, {shape.name}", "gradient steps/s", by_side, shape.replay_ratio),
    ]


def _rate(case: str, unit: str, by_side: dict[str, list[TrainingResult]], per_step: float) -> Row:
    rates = {side: [per_step * each.steps_per_s for each in column] for side, column in by_side.items()}
    return compare_sides(case, unit, rates, more_is_better=True) | {
        "returns": {side: [each.return_mean for each in column] for side, column in by_side.items()},
        "wall_s": {side: [each.wall_s for each in column] for side, column in by_side.items()},
    }


def _measure_priorities(grid: DqnGrid) -> list[Row]:
    """Time draws of 256 from a full replay: by priority, with and without returned errors, and uniformly."""
    replay = _full_replay(grid.num_slots)
    slots = replay.length * replay.num_columns
    priorities, rng = Priorities(slots, 0.6), np.random.default_rng(0)
    errors = np.abs(rng.normal(size=slots)).astype(np.float32)
    priorities.update(np.arange(slots), errors)

    def draw() -> None:
        priorities.draw(rng.random(256), 0.4)

    def draw_and_return() -> None:
        drawn, _ = priorities.draw(rng.random(256), 0.4)
        priorities.update(drawn, errors[:256])

    def uniform() -> None:
        replay.draw(rng, 256)

    note = f"uniformly {_time_us(uniform, grid.num_draws):.1f} us"
    size = f"256 of {grid.num_slots:,}"
    calls = {f"draw {size} by priority": draw, f"draw {size} and return errors": draw_and_return}
    costs = {case: _time_us(call, grid.num_draws) for case, call in calls.items()}
    return [
        compare_sides(case, "us", {OURS: [cost]}, more_is_better=False) | {"note": note}
        for case, cost in costs.items()
    ]


def _full_replay(num_slots: int) -> Replay:
    leaf = LeafSpec("", (4,), "float32", "vector")
    spec = EnvSpec("toy", (leaf,), ActionSpec("categories", (), "int64", (2,), (0,)), None, None)
    replay = Replay(ReplayLayout((leaf,), spec.action, 0, 8, num_slots))
    block = make_block(spec, 1000, 8)
    block.valid[:] = True
    for _ in range(-(-num_slots // 8000)):
        replay.store(block)
    return replay


def _time_us(call: Any, times: int) -> float:
    call()  # compiles, and fills the cache
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times * 1e6


def _learn(grid: DqnGrid) -> list[Row]:
    """Train the shipped settings on several seeds. SB3 lacks some of the switches they use."""
    jobs = [
        TrainingJob(
            OURS,
            case.env_id,
            {"algo": "dqn", "timesteps": case.timesteps, "seed": seed, "device": "cpu", "threads": 1},
            report_episodes=100,
        )
        for case in grid.learning
        for seed in grid.seeds
    ]
    results = run_jobs(jobs, at_once=min(2, usable_cores())) if jobs else []
    return [make_learning_row(case, group_by_side(results, case.env_id)) for case in grid.learning]


def _compare_ratios(grid: DqnGrid) -> Row:
    """Compare gradient steps per transition at 1, 8 and 64 environments, all else equal. For SB3: train_freq
    4 and gradient_steps 1, as its users set them."""
    ratios: list[float] = []
    shape = ReplayShape("", 1, 4, 0.25, 32, "16")
    for count in grid.env_counts:
        flags = shape.flags | {"n_envs": count, "learning_starts": 256, "timesteps": 1280, "seed": 1}
        ((_, result),) = run_jobs([TrainingJob(OURS, _ENV_ID, flags)], at_once=1)
        ratios.append(result.gradient_steps / 1024)
    counts = ", ".join(str(count) for count in grid.env_counts)
    row = compare_sides(
        f"gradient steps per transition, {counts} envs", "", {OURS: ratios}, more_is_better=True
    )
    at_four = ", ".join(f"{1 / (4 * count):.4g}" for count in grid.env_counts)
    return row | {"ratios": ratios, "note": f"SB3 with train_freq 4, gradient_steps 1: {at_four}"}
