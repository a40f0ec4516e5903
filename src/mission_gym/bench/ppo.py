"""`bench ppo`: steps per second of the whole training loop on CartPole-v1, all epochs made.

One thread each, one process at a time, the sides in turn. The first update is warm-up; all that comes
after it counts: collecting, learning, recording, the last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from mission_gym.bench.contest import Row, find_sides, group_by_side, make_row, run_jobs
from mission_gym.bench.sides import Job

_ENV_ID = "CartPole-v1"
_ROLLOUT = (32, 128)  # environments, steps
_EPOCHS = 10
_CHECKPOINT_FREQ = 50_000  # as in a run of the default length; one this short would save at every update


@dataclass(frozen=True, slots=True)
class PpoGrid:
    """What is measured."""

    batch_sizes: tuple[int, ...] = (512, 64)
    num_updates: int = 10  # after the warm-up
    repeats: int = 3


def measure_ppo(grid: PpoGrid) -> list[Row]:
    """One row per batch size."""
    return [_measure(grid, batch_size) for batch_size in grid.batch_sizes]


def _measure(grid: PpoGrid, batch_size: int) -> Row:
    n_envs, n_steps = _ROLLOUT
    total = n_envs * n_steps * (1 + grid.num_updates)
    flags = {
        "n_envs": n_envs, "n_steps_per_env": n_steps, "batch_size": batch_size, "n_epochs": _EPOCHS,
        "network_arch": "64,64", "activation": "tanh", "timesteps": total,
        "learning_rate": 3e-4, "learning_rate_final": None, "clip_range": 0.2, "clip_range_final": None,
        "gamma": 0.99, "gae_lambda": 0.95, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5,
        "target_kl": None, "normalize_obs": False, "normalize_returns": False,
        "eval_freq": 0, "checkpoint_freq": _CHECKPOINT_FREQ, "device": "cpu", "threads": 1,
    }  # fmt: skip
    sides = find_sides()
    jobs = [
        Job(side, _ENV_ID, flags | {"seed": seed}) for seed in range(1, grid.repeats + 1) for side in sides
    ]
    results = run_jobs(jobs, at_once=1)
    expected = total // batch_size * _EPOCHS
    for job, result in results:
        assert result.gradient_steps == expected, f"{job} made {result.gradient_steps}, not {expected}"
    by_side = group_by_side(results)
    rates = {side: [each.warm_steps / each.warm_s for each in column] for side, column in by_side.items()}
    case = f"{_ENV_ID}, {n_envs} x {n_steps}, batch {batch_size}, {_EPOCHS} epochs"
    return make_row(case, "steps/s", rates, more_is_better=True) | {
        "gradient_steps": {
            side: [each.gradient_steps for each in column] for side, column in by_side.items()
        },
        "returns": {side: [each.return_mean for each in column] for side, column in by_side.items()},
        "wall_s": {side: [each.wall_s for each in column] for side, column in by_side.items()},
    }
