"""`bench ppo`: steps per second of the whole training loop, all epochs made, the sides in turn.

Ours once on one core and once on all; a peer in every form that people run it in, and the best of them
counts. The first update is warm-up; all that comes after it counts: collecting, learning, recording, the
last checkpoint.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

from mission_gym.procs import usable_cores
from mission_gym_bench.contest import OURS, PEERS, Row, find_sides, group_by_side, make_row, run_jobs
from mission_gym_bench.sides import Job, Result

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
        if seed == 1 or not form.subproc  # its processes take a minute to start; one run shows its place
    ]
    results = run_jobs(jobs, at_once=1)
    expected = total // case.batch_size * case.n_epochs
    for job, result in results:
        assert result.gradient_steps == expected, f"{job} made {result.gradient_steps}, not {expected}"
    by_form = group_by_side(results)
    peers = _best_forms(by_form)
    return [
        _make_row(f"{case}, {form}", {OURS: by_form[f"{OURS} {form}"]} | peers, by_form)
        for form in (_ONE_CORE, _ALL_CORES)
    ]


def _list_forms(env_id: str, flags: dict[str, Any]) -> list[Job]:
    """Each side in each of its forms; the seed is still to come."""
    workers = {"vector": "workers", "num_workers": usable_cores(), "threads": "auto"}
    forms = [
        Job(OURS, env_id, flags | {"vector": "serial"}, form=_ONE_CORE),
        Job(OURS, env_id, flags | workers, form=_ALL_CORES),
    ]
    for side in find_sides():
        if side != OURS:
            forms += [
                Job(side, env_id, flags, form="Dummy, 1 thread"),
                Job(side, env_id, flags, form=f"Dummy, {usable_cores()} threads", threads=usable_cores()),
                Job(side, env_id, flags, form="Subproc, 1 thread", subproc=True),
            ]
    return forms


def _best_forms(by_form: dict[str, list[Result]]) -> dict[str, list[Result]]:
    """The form of each peer with the highest median rate, under the peer's name."""
    best: dict[str, list[Result]] = {}
    for peer in PEERS:
        columns = [column for name, column in by_form.items() if name.startswith(f"{peer} ")]
        if columns:
            best[peer] = max(columns, key=lambda column: statistics.median(_rates(column)))
    return best


def _rates(column: list[Result]) -> list[float]:
    return [each.warm_steps / each.warm_s for each in column]


def _make_row(case: str, sides: dict[str, list[Result]], by_form: dict[str, list[Result]]) -> Row:
    rates = {side: _rates(column) for side, column in sides.items()}
    return make_row(case, "steps/s", rates, more_is_better=True) | {
        "forms": {name: round(statistics.median(_rates(column))) for name, column in by_form.items()},
        "gradient_steps": {side: [each.gradient_steps for each in column] for side, column in sides.items()},
        "returns": {side: [each.return_mean for each in column] for side, column in sides.items()},
        "wall_s": {side: [each.wall_s for each in column] for side, column in sides.items()},
    }
