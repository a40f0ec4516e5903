"""How often a run evaluates: the rule by counted steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules
from mission_gym.data import EnvSpec
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.selection import (
    count_confirming,
    describe_evaluations,
    fit_freq,
    is_affordable,
    is_automatic,
    is_near_end,
)
from mission_gym.run.settle import settle


def look(*, trusted: bool, limit: int | None = 500) -> EnvSpec:
    spec = probe(make_factory(EnvRequest("CartPole-v1")), "CartPole-v1")
    fields = {name: getattr(spec, name) for name in EnvSpec.__dataclass_fields__}
    return EnvSpec(**fields | {"trusted": trusted, "max_episode_steps": limit})


OURS, THEIRS = look(trusted=True), look(trusted=False)


def make(**flags: Any) -> Resolved:
    flags = {
        "timesteps": 1_024_000,
        "n_envs": 8,
        "n_steps_per_env": 128,
        "batch_size": 64,
        "vector": "serial",
    } | flags
    resolved = resolve("CartPole-v1", flags)
    return settle(resolved, replace(open_environment(resolved.config, {}), spec=OURS))[0]


@pytest.mark.parametrize(
    ("spec", "length", "freq"),
    [
        (THEIRS, 69, 20_480),  # 20 episodes of 70 steps are 7 % of 20,000: timesteps/50 is more
        (THEIRS, 500, 143_000),
        (THEIRS, 501, 144_000),  # whole thousands
        (OURS, 500, 36_000),  # learning takes most of the time: four times as often
    ],
)
def test_long_episodes_are_evaluated_rarely(spec: EnvSpec, length: float, freq: int) -> None:
    fitted = fit_freq(make(), spec, length)
    assert fitted.config.evaluation.eval_freq == freq
    assert fitted.sources["evaluation.eval_freq"] == "auto"
    assert is_automatic(fitted)


@pytest.mark.parametrize("given", [{"eval_freq": 1000}, {"eval_freq": 0}])
def test_what_was_given_is_obeyed(given: dict[str, Any]) -> None:
    resolved = make(**given)
    assert fit_freq(resolved, THEIRS, 10_000) is resolved
    assert not is_automatic(resolved)


def test_shipped_settings_are_obeyed() -> None:
    shipped = resolve("mission_gym/Placement-v0", {})
    assert not is_automatic(shipped)
    assert is_automatic(apply_rules(resolve("CartPole-v1", {}))[0])


@pytest.mark.parametrize(
    ("played", "cost", "trained", "total", "fits"),
    [
        (0, 700, 10_001, 100_000, True),
        (0, 700, 9_999, 100_000, False),  # not paid for yet
        (700, 700, 20_001, 100_000, True),
        (5500, 700, 90_000, 100_000, True),
        (5700, 700, 95_000, 100_000, False),  # the last one would no longer fit
    ],
)
def test_the_steps_trained_pay_for_an_evaluation(
    played: int, cost: float, trained: int, total: int, fits: bool
) -> None:
    assert is_affordable(THEIRS, played=played, cost=cost, trained=trained, total=total) is fits
    costly = {"played": 4 * played, "cost": 4 * cost}
    assert is_affordable(OURS, **costly, trained=trained, total=total) is fits


def test_what_is_played_again_takes_a_part_of_what_was_played() -> None:
    assert count_confirming(20, [500.0] * 3, 100_000) == 20  # as many again, at most
    assert count_confirming(20, [500.0] * 3, 30_000) == 8  # 12,000 steps for three
    assert count_confirming(20, [500.0] * 2, 2_000) == 0
    # With the evaluations before it a tenth: 0.07 and 0.4 of that.
    played = 70_000
    assert played + 3 * 500 * count_confirming(10**9, [500.0] * 3, played) <= 100_000


def test_none_is_made_shortly_before_the_end() -> None:
    assert [is_near_end(left, 100_000) for left in (124_000, 50_000, 49_999)] == [False, False, True]


def test_the_plan_tells_number_and_share() -> None:
    def tell(resolved: Resolved, length: float, spec: EnvSpec = THEIRS) -> tuple[str, str]:
        times = {"collect_s": 1e-4, "train_s": 102.4}
        fact = describe_evaluations(resolved, spec, 1_024_000, episode_steps=length, **times)
        return fact.value, fact.reason

    assert tell(make(eval_freq=100_000), 100) == (
        "10",
        "20 episodes every 100,000 steps: about 2 % of the time with episodes of 100 steps, about 9 % of the"
        " time with episodes of 500 steps",
    )
    assert tell(make(eval_freq=100_000), 500)[1].endswith(
        ": about 9 % of the time with episodes of 500 steps"
    )
    assert tell(make(eval_freq=100_000), 100, look(trusted=False, limit=None))[1].endswith("100 steps")
    number, reason = tell(fit_freq(make(), THEIRS, 500), 500)
    assert number == "7"
    assert reason.endswith("; fewer if episodes get longer, at most about a tenth")
    assert tell(make(eval_freq=0), 100) == ("0", "")
    assert tell(fit_freq(make(), THEIRS, 9000), 9000) == (
        "1",
        "20 episodes at the end: about 15 % of the time with episodes of 9,000 steps",
    )
    assert tell(make(), 1)[1].startswith("20 episodes every 20,480 steps: under 1 % of the time with")
    # 2.4 intervals: the second one is moved to the end
    assert [tell(make(eval_freq=freq), 1)[0] for freq in (426_667, 341_334, 4_000_000)] == ["2", "3", "1"]
