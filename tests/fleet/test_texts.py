"""Seeds as users write them, and the arguments of a job."""

from __future__ import annotations

from typing import Any

import pytest

from mission_gym.cli.train import parse_train, resolve_flags
from mission_gym.errors import UsageError
from mission_gym.fleet.requests import make_arguments, parse_seeds


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("5", (3, 4, 5, 6, 7)),
        (2, (3, 4)),
        ("1..5", (1, 2, 3, 4, 5)),
        ("7..7", (7,)),
        ("3,7,11", (3, 7, 11)),
        ("3, 7", (3, 7)),
        ("4,", (4,)),
        ([9, 1], (9, 1)),
    ],
)
def test_seeds_are_read(given: Any, expected: tuple[int, ...]) -> None:
    assert parse_seeds(given, 3, "--seeds") == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("five", "write 5, 1..5 or 3,7,11"),
        ("1-5", "write 5, 1..5 or 3,7,11"),
        (1.5, "can't be read"),
        (True, "can't be read"),
        ("0", "use 1 to 1000"),
        ("5..1", "are 0"),
        ("3,3", "contain a seed twice"),
        ([1, "x"], "can't be read"),
        ([-1], "0 or above"),
        ("100000000", "use 1 to 1000"),
        (1 << 63, "can't be read"),
        (-2, "are 0"),
    ],
)
def test_invalid_seeds_are_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=rf"{message}.*\[--seeds\]"):
        parse_seeds(given, 0, "--seeds")


def test_arguments_keep_the_values() -> None:
    values = {
        "env": "toys:Identity", "env_kwargs": {"n": 3, "start": 1}, "network_arch": [8, 8], "seed": 4,
        "tensorboard": False, "max_time": None, "learning_rate": 1e-5, "wrap": ["frame-stack:4"],
        "set": ["ppo.gamma=0.9"], "notes": "-x", "timesteps": "2k",
    }  # fmt: skip
    config = resolve_flags(parse_train(make_arguments(values))).config
    assert config.env.env_id == "toys:Identity"
    assert config.env.env_kwargs == {"n": 3, "start": 1}
    assert config.env.wrap == ("frame-stack:4",)
    assert config.policy.network_arch == (8, 8)
    assert (config.run.seed, config.run.tensorboard, config.run.max_time) == (4, False, None)
    assert (config.algorithm.learning_rate, config.algorithm.gamma) == (1e-5, 0.9)
    assert (config.run.notes, config.run.timesteps) == ("-x", 2000)
