"""The checks of batch sizes, rollouts, screens and evaluation intervals under the names of earlier scripts:
`pytest tests/test_training_fixes.py -v`."""

from __future__ import annotations

import pytest

import mission_gym as mg
from mission_gym.config.rules import apply_rules
from mission_gym.errors import ConfigError
from mission_gym.report.terminal import RunView
from mission_gym.run.config import resolve


@pytest.mark.parametrize("buffer", [1, 48, 997, 1000, 2016, 2048, 6144, 8192, 10_240])
def test_basic_divisibility(buffer: int) -> None:
    assert buffer % mg.pick_batch_size(buffer) == 0


@pytest.mark.parametrize(("buffer", "batch"), [(2048, 512), (8192, 2048), (6144, 1536), (10_240, 2560)])
def test_target_fraction(buffer: int, batch: int) -> None:
    assert mg.pick_batch_size(buffer) == batch == buffer / 4


def test_edge_cases() -> None:
    assert [mg.pick_batch_size(buffer) for buffer in (1, 48, 997, 1000, 2016)] == [1, 48, 997, 250, 504]
    with pytest.raises(ConfigError, match="a rollout of 0 steps"):
        mg.pick_batch_size(0)


@pytest.mark.parametrize("n_envs", [16, 64, 128])
def test_n_steps_scaling(n_envs: int) -> None:
    """The steps of each environment do not depend on the number of environments."""
    config = apply_rules(resolve("Env-v0", {"n_envs": n_envs, "n_steps": 128}))[0].config
    assert config.rollout_size == 128 * n_envs


def test_metrics_callback_init() -> None:
    """The view of a run holds no console, so it can't leave a terminal in a broken state."""
    assert not any("console" in name.lower() for name in vars(RunView()))


def test_eval_freq_default() -> None:
    assert apply_rules(resolve("Env-v0", {"timesteps": "500k"}))[0].config.evaluation.eval_freq == 20_000
