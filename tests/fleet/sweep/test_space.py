"""The searched fields and their ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mission_gym.algorithms import ALGORITHMS
from mission_gym.fleet.sweep.space import (
    fit_values,
    from_sampler,
    limit_rollouts,
    list_axes,
    read_axes,
    sampler_range,
    to_sampler,
)
from mission_gym.run.config import resolve
from mission_gym.store.sweeps import Axis

BASE = resolve("CartPole-v1", {"n_envs": "8", "timesteps": "50k"})


def read(over: str) -> tuple[dict[str, Axis], list[str]]:
    problems: list[str] = []
    return {axis.name: axis for axis in read_axes(over, BASE, problems)}, problems


def test_ranges_and_choices_are_read() -> None:
    text = "learning_rate=1e-5..1e-2, n-epochs=3..20,n_steps=16..512,gamma=0.9..0.999,network_arch=64,64|128"
    axes, problems = read(text + ",normalize_obs=true|false,max_grad_norm=0.1..100,target_kl=none|0.03")
    assert not problems
    ranges = {name: (axis.low, axis.high, axis.scale) for name, axis in axes.items() if not axis.choices}
    assert ranges == {
        "learning_rate": (1e-5, 1e-2, "log"), "n_epochs": (3, 20, "log"), "gamma": (0.9, 0.999, "gap"),
        "n_steps_per_env": (16, 512, "power"), "max_grad_norm": (0.1, 100.0, "log"),
    }  # fmt: skip
    assert axes["n_epochs"].is_whole
    assert {name: axis.choices for name, axis in axes.items() if axis.choices} == {
        "network_arch": ["64,64", "128"], "normalize_obs": [True, False], "target_kl": [None, 0.03],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ("learning_rat=1..2", "'learning_rat' is not a known field (did you mean 'learning_rate'?)"),
        ("gamma=0.99..0.9", "gamma=0.99..0.9 is empty: 0.99 is not below 0.9"),
        ("n_epochs=..5", "n_epochs=..5 lacks an end; write n_epochs=low..high"),
        ("n_epochs=5", "n_epochs=5 is not a range"),
        ("n_epochs", "n_epochs has no range; write n_epochs=low..high or n_epochs=a|b"),
        ("gamma=0.9..1.5", "gamma=1.5 should be less than or equal to 1 [--over]"),
        ("n_epochs=0..5", "n_epochs=0 should be greater than or equal to 1 [--over]"),
        ("activation=tanh|sigmoid", "activation=sigmoid should be 'tanh', 'relu' or 'elu' [--over]"),
        ("activation=tanh|tanh", "activation=tanh|tanh is one choice"),
        ("activation=elu..tanh", "activation=elu..tanh is not a range of numbers"),
        ("n_envs=4..16", "n_envs can't be searched: it is chosen for speed; give it as a flag"),
        ("threads=1..2", "threads can't be searched: it is chosen for speed"),
        ("timesteps=1k..2k", "timesteps can't be searched: it must be the same for all trials"),
        ("gamma=0.9..0.99,gamma=0.8..0.9", "gamma is given twice"),
        ("algo=ppo", "algo=ppo is one choice; give two values or more"),
        ("algo=ppo,sca", "algo=sca should be one of 'ppo', 'dqn', 'sac' (did you mean 'sac'?)"),
        ("algo=ppo,sac,gamma=0.9..0.99", "gamma: algorithms have their own fields, so none is searched"),
    ],
)
def test_invalid_ranges_are_refused(over: str, message: str) -> None:
    _, problems = read(over)
    assert len(problems) == 1
    assert message in problems[0]


def test_algorithms_are_searched_by_name() -> None:
    axes, problems = read("algo=ppo,sac,activation=tanh|relu")
    assert not problems
    assert axes["algo"].choices == ["ppo", "sac"]
    assert fit_values(BASE, {"run.algo": "sac"}) == {"algo": "sac"}


def test_all_problems_are_reported() -> None:
    _, problems = read("x=1..2,gamma=2..3,n_epochs=9..3,learning_rate=1e-4..1e-3")
    assert [problem.split()[0] for problem in problems] == ["'x'", "gamma=2", "gamma=3", "n_epochs=9..3"]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_schema_has_ranges_for_every_algorithm(algo: str) -> None:
    base = resolve("CartPole-v1", {"algo": algo})
    axes = list_axes(base)
    assert {"learning_rate", "batch_size", "gamma"} <= {axis.name for axis in axes}
    for axis in axes:
        assert axis.low < axis.high
        base.with_values({axis.path: axis.low}, "test")
        base.with_values({axis.path: axis.high}, "test")
    kept = list_axes(resolve("CartPole-v1", {"algo": algo, "gamma": "0.98"}))
    assert {axis.name for axis in axes} - {axis.name for axis in kept} == {"gamma"}


@given(st.sampled_from(list_axes(BASE)), st.floats(0.0, 1.0))
def test_draws_are_in_the_range_and_invertible(axis: Axis, share: float) -> None:
    low, high, is_log, is_whole = sampler_range(axis)
    drawn = low * (high / low) ** share if is_log else low + share * (high - low)
    value = from_sampler(axis, round(drawn) if is_whole else drawn)
    assert axis.holds(value)
    assert isinstance(value, int | float)
    assert from_sampler(axis, to_sampler(axis, value)) == pytest.approx(value)


def test_a_setting_is_adapted_as_a_preset_is() -> None:
    given = fit_values(BASE, {"ppo.n_steps_per_env": 16, "ppo.batch_size": 512, "ppo.learning_rate": 1e-4})
    assert given == {"n_steps_per_env": 16, "batch_size": 128, "learning_rate": 1e-4}
    falling = resolve("CartPole-v1", {"n_envs": "8"}).with_values(
        {"ppo.learning_rate_final": 1e-4}, "preset x"
    )
    given = fit_values(falling, {"ppo.learning_rate": 1e-5})
    assert given == {"learning_rate": 1e-5, "learning_rate_final": None}


def test_rollouts_stay_within_the_plan() -> None:
    axes, _ = read("n_steps=16..2048,gamma=0.9..0.99")
    problems: list[str] = []
    steps, gamma = limit_rollouts(list(axes.values()), "ppo.n_steps_per_env", 64, problems)
    assert (steps.low, steps.high, gamma) == (16, 64, axes["gamma"])
    assert not problems
    limit_rollouts(list(axes.values()), "ppo.n_steps_per_env", 8, problems)
    assert "leave a trial too few updates" in problems[0]
