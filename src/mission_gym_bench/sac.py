"""`bench sac`: the arithmetic of a gradient step, SAC compared with SB3's at equal settings, and learning.

Arithmetic: gradient steps of the compiled kernel, in turn with the matrix products they consist of. Speed:
one thread each, one process at a time, the sides in turn; everything after the first update counts.
Learning: the shipped settings and SB3's defaults; seconds are CPU time of training, and returns are those of
the final policy on the report suite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.sac.kernel import NUM_CRITICS, SacSettings
from mission_gym.algorithms.sac.learner import make_kernel
from mission_gym.data import Array, LeafSpec
from mission_gym.learner.off_policy_learner import Transitions
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.procs import usable_cores
from mission_gym.run.build import one_blas_thread
from mission_gym_bench.ppo import LearningCase, check_gradient_steps, make_learning_row
from mission_gym_bench.runner import (
    OURS,
    Measure,
    Row,
    TrainingJob,
    TrainingResult,
    compare_sides,
    find_medians,
    find_sides,
    find_spreads,
    group_by_side,
    make_row,
    measure_in_turn,
    repeat_work,
    run_jobs,
)

_COMMON: dict[str, Any] = {
    "algo": "sac", "activation": "relu", "network_arch": "256,256", "batch_size": 256, "replay_ratio": 1.0,
    "gamma": 0.99, "tau": 0.005, "learning_rate": 3e-4, "replay_size": 50_000, "n_step": 1,
    "temperature_init": 1.0, "normalize_obs": False, "normalize_returns": False, "eval_freq": 0,
    "checkpoint_freq": 50_000, "device": "cpu", "threads": 1,
}  # fmt: skip
_TRAINERS = {OURS: "ours:train_defaults", "sb3": "defaults.peers:train_sb3"}
_NUM_INPUTS, _NUM_REALS, _BATCH, _WIDTHS = 17, 6, 256, (256, 256)  # HalfCheetah's, and SB3's defaults
_STEPS = 8  # of a call of the kernel


@dataclass(frozen=True, slots=True)
class SacShape:
    """The sizes of one comparison; the rest are SB3's defaults."""

    env_id: str
    n_envs: int
    n_steps_per_env: int

    @property
    def rollout(self) -> int:
        return self.n_envs * self.n_steps_per_env

    @property
    def flags(self) -> dict[str, Any]:
        return _COMMON | {
            "n_envs": self.n_envs, "n_steps_per_env": self.n_steps_per_env, "learning_starts": self.rollout,
        }  # fmt: skip


SHAPES = (SacShape("Pendulum-v1", 1, 1), SacShape("Pendulum-v1", 4, 4))
LEARNING = (
    LearningCase("HalfCheetah-v5", 300_000, 8_000.0),
    LearningCase("Walker2d-v5", 300_000, 2_300.0),
    LearningCase("Hopper-v5", 300_000, 2_400.0),
    LearningCase("BipedalWalker-v3", 300_000, 250.0),
    LearningCase("LunarLanderContinuous-v3", 150_000, 220.0),
    LearningCase("Pendulum-v1", 20_000, -180.0),
)


@dataclass(frozen=True, slots=True)
class SacGrid:
    """What is measured."""

    shapes: tuple[SacShape, ...] = SHAPES
    num_steps: int = 2_000
    seconds: float = 1.0
    repeats: int = 3
    learning: tuple[LearningCase, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)


def measure_sac(grid: SacGrid) -> list[Row]:
    """The arithmetic, a row per shape, and a row per task."""
    return [_measure_arithmetic(grid), *(_measure_shape(shape, grid) for shape in grid.shapes), *_learn(grid)]


def _measure_arithmetic(grid: SacGrid) -> Row:
    """Gradient steps per second with one thread, in turn with their matrix products alone."""
    measures: dict[str, Measure] = {
        OURS: partial(repeat_work, _make_steps(), 1),
        "products": partial(repeat_work, _make_products(), 1),
    }
    with one_blas_thread():
        rates = measure_in_turn(measures, grid.seconds, grid.repeats)
    medians, widths = find_medians(rates), ",".join(map(str, _WIDTHS))
    return make_row(
        f"arithmetic: batch {_BATCH}, {widths}",
        medians[OURS],
        "gradient steps/s",
        {"products": medians["products"]},
        medians[OURS] / medians["products"],
        spread=find_spreads(rates),
        note="peers.products: the matrix products of a gradient step by NumPy, and nothing else",
    )


def _make_steps() -> Callable[[], int]:
    """Gradient steps of the compiled kernel on random transitions."""
    bounds = (1.0,) * _NUM_REALS
    action = ActionSpec("box", (_NUM_REALS,), "float32", low=tuple(-each for each in bounds), high=bounds)
    leaf = LeafSpec("", (_NUM_INPUTS,), "float32", "vector")
    policy = PolicySpec((leaf,), action, _WIDTHS, "relu", form="squashed", outputs_per_real=2)
    settings = SacSettings(
        batch_size=_BATCH,
        tau=0.005,
        policy_delay=1,
        target_entropy=-_NUM_REALS,
        num_dropped=0,
        num_quantiles=1,
        layer_norm=False,
        temperature=1.0,
    )
    kernel, rng, num = make_kernel(policy, 0, settings, "compiled"), np.random.default_rng(0), _STEPS * _BATCH
    before, after = (Encoded(rng.standard_normal((num, _NUM_INPUTS), np.float32), ()) for _ in range(2))
    batch = Transitions(
        inputs=before,
        action=rng.uniform(-1.0, 1.0, (num, _NUM_REALS)).astype(np.float32),
        reward=rng.standard_normal(num, np.float32),
        discount=np.full(num, 0.99, np.float32),
        next_inputs=after,
        next_mask=None,
        weight=None,
    )
    noise = rng.standard_normal((_STEPS, 2, _BATCH, _NUM_REALS), np.float32)

    def work() -> int:
        kernel.learn(batch, noise, 3e-4, 0)
        return _STEPS

    work()  # compiles
    return work


def list_products() -> list[tuple[int, int, int]]:
    """The sizes (m, k, n) of all products [m, k] x [k, n] of a gradient step."""
    actor = list(pairwise((_NUM_INPUTS, *_WIDTHS, 2 * _NUM_REALS)))
    critic = list(pairwise((_NUM_INPUTS + _NUM_REALS, *_WIDTHS, 1)))
    b = _BATCH
    # The actor passes both observations; the critics pass next, stored and new actions.
    sizes = [(2 * b, k, n) for k, n in actor]
    sizes += [(b, k, n) for k, n in critic] * (3 * NUM_CRITICS)
    # Gradients of weights, and of the inputs of all layers but the first.
    for layers, copies in ((actor, 1), (critic, NUM_CRITICS)):
        sizes += ([(k, b, n) for k, n in layers] + [(b, n, k) for k, n in layers[1:]]) * copies
    # The actor's gradient passes the critics down to the action.
    sizes += ([(b, n, k) for k, n in critic[1:]] + [(b, _WIDTHS[0], _NUM_REALS)]) * NUM_CRITICS
    return sizes


def _make_products() -> Callable[[], int]:
    """All products in the same memory, which stays in the cache."""
    largest = max(max(m * k, k * n, m * n) for m, k, n in list_products())
    left, right, out = np.random.default_rng(0).standard_normal((3, largest), np.float32)

    def view(numbers: Array, *shape: int) -> Array:
        return numbers[: shape[0] * shape[1]].reshape(shape)

    triples = [(view(left, m, k), view(right, k, n), view(out, m, n)) for m, k, n in list_products()]

    def work() -> int:
        for triple in triples:
            np.dot(*triple)
        return 1

    return work


def _measure_shape(shape: SacShape, grid: SacGrid) -> Row:
    total = shape.rollout * -(-grid.num_steps // shape.rollout)
    jobs = [
        TrainingJob(side, shape.env_id, shape.flags | {"seed": seed, "timesteps": total})
        for seed in range(1, grid.repeats + 1)
        for side in find_sides()
    ]
    results = run_jobs(jobs, at_once=1)
    check_gradient_steps(results, total - shape.rollout)
    by_side = group_by_side(results)
    rates = {side: [each.steps_per_s for each in column] for side, column in by_side.items()}
    case = f"{shape.env_id}, {shape.n_envs} x {shape.n_steps_per_env}, ratio 1, batch 256, 256,256"
    return compare_sides(case, "steps/s", rates, more_is_better=True) | {"wall_s": _list_walls(by_side)}


def _list_walls(by_side: dict[str, list[TrainingResult]]) -> dict[str, list[float]]:
    return {side: [each.wall_s for each in column] for side, column in by_side.items()}


def _learn(grid: SacGrid) -> list[Row]:
    """Train each side on each task with each seed. The clock counts CPU time, so several run at a time."""
    jobs = [
        TrainingJob(
            side,
            case.env_id,
            {"algo": "sac", "timesteps": case.timesteps, "seed": seed},
            report_episodes=100,
            trainer=_TRAINERS[side],
        )
        for case in grid.learning
        for seed in grid.seeds
        for side in find_sides()
    ]
    results = run_jobs(jobs, at_once=min(2, usable_cores())) if jobs else []
    return [make_learning_row(case, group_by_side(results, case.env_id)) for case in grid.learning]
