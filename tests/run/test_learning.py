"""Learning is the proof of correctness: known optima in seconds, then the shipped settings on real tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mission_gym as mg

TOY = {
    "seed": 1, "n_envs": 8, "n_steps_per_env": 64, "learning_rate": 2e-3, "gamma": 0.5, "n_epochs": 6,
    "network_arch": "32", "tensorboard": False, "progress": False, "eval_freq": 0,
}  # fmt: skip


def train(tmp_path: Path, env: str, **flags: Any) -> mg.Run:
    return mg.train(env, runs_dir=str(tmp_path), **flags)


@pytest.mark.parametrize(
    ("toy", "timesteps", "least"),
    [("Identity", 10_000, 19.0), ("Binary", 15_000, 19.0), ("Pointer", 20_000, -6.0)],
)
def test_known_optimum_is_found(toy: str, timesteps: int, least: float, tmp_path: Path) -> None:
    run = train(tmp_path, f"toys:{toy}", timesteps=timesteps, **TOY)
    assert run.evaluate(episodes=20)["return_mean"] >= least


SAC = {
    "algo": "sac", "seed": 1, "n_envs": 4, "n_steps_per_env": 4, "batch_size": 64, "learning_starts": 256,
    "learning_rate": 2e-3, "tau": 0.02, "gamma": 0.5, "network_arch": "32,32", "tensorboard": False,
    "progress": False, "eval_freq": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kernel": "torch", "policy_delay": 2, "n_step": 2, "prioritized": True},
        {"num_quantiles": 5, "critic_layer_norm": True, "normalize_obs": False},
    ],
    ids=["plain", "torch", "quantiles"],
)
def test_sac_finds_a_known_optimum(changes: dict[str, Any], tmp_path: Path) -> None:
    run = train(tmp_path, "toys:Pointer", timesteps=2_000, **SAC | changes)
    assert run.evaluate(episodes=20)["return_mean"] >= -2.0


@pytest.mark.parametrize("vector", ["serial", "workers"])
def test_a_small_change_of_a_large_number_is_seen(vector: str, tmp_path: Path) -> None:
    """From the environment to the network, through shared memory too: see policy/encoding.py."""
    run = train(tmp_path, "toys:Far", timesteps=6_000, vector=vector, **TOY)
    assert run.evaluate(episodes=20)["return_mean"] >= 17.0


@pytest.mark.slow
def test_nested_observations_images_masks_and_outcomes_together(tmp_path: Path) -> None:
    """The rate falls to 0: at a constant one, a single late update can undo what was learned."""
    run = train(tmp_path, "toys:DictMask", timesteps=6_000, threads=1, **TOY | {"learning_rate_final": 0.0})
    result = run.evaluate(episodes=20)
    assert result["outcomes"]["won"]["rate"] >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("normalize_returns", [False, True])
def test_truncation_is_not_death(normalize_returns: bool, tmp_path: Path) -> None:
    """1 a step for ever is worth 1 / (1 - 0.99) = 100; a truncation taken for death gives under 10."""
    run = train(
        tmp_path,
        "toys:Constant",
        timesteps=50_000,
        **TOY
        | {
            "gamma": 0.99,
            "learning_rate": 5e-3,
            "normalize_returns": normalize_returns,
            "network_arch": "64",
        },
    )
    last = [row for row in run.metrics() if row["event"] == "progress"][-1]
    assert last["train/value_mean"] == pytest.approx(100, rel=0.05)


def test_values_of_a_task_without_an_end_are_reached_in_some_tens_of_rollouts(tmp_path: Path) -> None:
    """With the default learning rate: 1.61 a step is worth 161, and a rollout's targets come nearer by a
    sixth of the gap (1 - 0.01 / (1 - 0.99 0.95)), so that 30 rollouts leave 0.4 % of it."""
    run = train(
        tmp_path,
        "toys:Constant",
        timesteps=40 * 512,
        **TOY | {"env_kwargs": {"pay": 1.61, "length": 1000}, "gamma": 0.99, "learning_rate": 3e-4},
    )
    last = [row for row in run.metrics() if row["event"] == "progress"][-1]
    assert last["train/value_mean"] == pytest.approx(161, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("env", "least"), [("CartPole-v1", 475.0), ("Pendulum-v1", -250.0)])
def test_shipped_settings_solve_the_short_tasks_in_100k_steps(env: str, least: float, tmp_path: Path) -> None:
    """One seed, no further than needed; `mission-gym bench learning` takes five."""
    flags = {"stop_when": f"return>={least}", "tensorboard": False, "progress": False}
    run = train(tmp_path, env, timesteps=100_000, seed=1, **flags)
    assert run.evaluate(episodes=100)["return_mean"] >= least


@pytest.mark.slow
def test_shipped_settings_of_sac_swing_the_pendulum_up_in_20k_steps(tmp_path: Path) -> None:
    """Five seeds reached -149 to -145 on these episodes."""
    run = train(tmp_path, "Pendulum-v1", algo="sac", seed=1, tensorboard=False, progress=False)
    assert run.evaluate(episodes=100)["return_mean"] >= -180.0
