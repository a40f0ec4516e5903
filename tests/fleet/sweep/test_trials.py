"""The trials that are trained again, the verdict, and the preset."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mission_gym.fleet.sweep.study import SweepTrial
from mission_gym.fleet.sweep.trials import (
    choose_candidates,
    describe_excess,
    describe_verdict,
    make_preset,
    read_retest,
    read_score,
)
from mission_gym.intervals import describe_seeds, estimate_excess
from mission_gym.run.config import resolve
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import Axis, Candidate, Question, TrialRow


def make_trial(number: int, score: float | None, source: str = "search", **more: Any) -> SweepTrial:
    values = {"learning_rate": float(f"{number + 1}e-4")} | more.pop("values", {})
    state: Any = "failed" if score is None else "complete"
    row = TrialRow(number=number, source=source, state=state, values=values, score=score, seconds=1.0)
    return SweepTrial(row.model_copy(update=more), values, [], False)


def make_candidate(source: str, *scores: float) -> Candidate:
    found = describe_seeds([scores])
    return Candidate(
        trial=0, source=source, values={}, seeds=len(scores), scores=found.pop("values"), **found
    )  # fmt: skip


def test_the_best_are_trained_again_each_setting_once_and_the_default() -> None:
    trials = [
        make_trial(0, 1.0, "default"), make_trial(1, 5.0), make_trial(2, 5.0, seconds=0.5),
        make_trial(3, 4.0, values={"learning_rate": 2e-4}), make_trial(4, 3.0), make_trial(5, None),
    ]  # fmt: skip
    assert [each.row.number for each in choose_candidates(trials, 3)] == [2, 1, 4, 0]
    assert [each.row.number for each in choose_candidates(trials, 9)] == [2, 1, 4, 0]
    assert choose_candidates(trials[5:], 3) == []


@pytest.mark.parametrize(
    ("best", "verdict"),
    [
        (
            (8.0, 9.0, 9.5, 10.0, 11.0),
            "the winner is better than the default: mean 9.5 against 6.5, p = 0.0079",
        ),
        ((6.0, 6.5, 7.0, 7.5, 9.0), "the winner is not shown to be better than the default"),
        ((8.0, 9.0, 10.0), "too few seeds to call the winner better than the default (mean 9 against 6.5)"),
        ((), "no run on fresh seeds was completed"),
    ],
)
def test_the_verdict_is_honest(best: tuple[float, ...], verdict: str) -> None:
    default = make_candidate("default", 6.0, 6.2, 6.5, 6.8, 7.0)
    assert describe_verdict([make_candidate("search", *best), default]).startswith(verdict)
    assert describe_verdict([default]).startswith("only the default was trained on fresh seeds; --retest 2")
    worse = make_candidate("search", 0.1, 0.2)
    assert describe_verdict([default, worse]).startswith("no setting beats the default")


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator], Any]] = {
    "normal": lambda rng: rng.normal(size=5),
    "exponential": lambda rng: rng.exponential(size=5),
    "two peaks": lambda rng: np.where(rng.random(5) < 0.7, 1.0, 0.0) + rng.normal(0.0, 0.1, 5),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_equal_settings_are_rarely_called_better(name: str) -> None:
    """The winner is the best of four, the default included, by the seeds that it is tested on."""
    rng, num_better, excesses, stated = np.random.default_rng(0), 0, [], []
    truth = np.mean([DISTRIBUTIONS[name](rng) for _ in range(20_000)])
    for _ in range(1000):
        found = [make_candidate("search", *DISTRIBUTIONS[name](rng)) for _ in range(3)]
        found.append(make_candidate("default", *DISTRIBUTIONS[name](rng)))
        found.sort(key=lambda each: each.mean or 0.0, reverse=True)
        num_better += describe_verdict(found).startswith("the winner is better")
        excesses.append((found[0].mean or 0.0) - truth)
        stated.append(estimate_excess([each.scores for each in found]))
    assert num_better <= 50
    assert np.mean(excesses) == pytest.approx(np.mean(stated), rel=0.15)


def test_the_bias_that_is_left_is_stated() -> None:
    found = [make_candidate("search", 8.0, 9.0, 10.0), make_candidate("default", 5.0, 6.0, 7.0)]
    # Standard error 1 / sqrt(3), times the highest of two normal values, 0.589 by Blom.
    text = describe_excess(found)
    assert "as the best of 2 settings, so its mean is too high" in text
    assert text.endswith("the expected excess is at most about 0.34.")
    few = [make_candidate("search", 1.0), make_candidate("default", 0.0)]
    assert describe_excess(few).endswith("the expected excess is unknown.")
    assert describe_excess(few[:1]).endswith("has no selection bias.")


def test_the_preset_contains_given_and_found_values(tmp_path: Path) -> None:
    flags = {"activation": "relu", "learning_rate": "1e-5", "timesteps": "9k", "n_envs": "4"}
    base = resolve("CartPole-v1", flags, preset="fast")
    axes = [Axis(path="ppo.learning_rate", low=1e-5, high=1e-2, scale="log")]
    question = Question(
        asked={}, values={}, over="", axes=axes, starts=[], measure="return", trials=1, budget_s=None,
        seeds=[0], retest=1, retest_seeds=[1, 2], folder="",
    )  # fmt: skip
    candidates = [make_candidate("search", 8.0, 9.0, 10.0), make_candidate("default", 5.0, 6.0, 7.0)]
    text = make_preset(base, make_trial(7, 9.0), candidates, question)
    assert "mean return 9 after 9,000 steps" in text
    assert "# on 3 seeds that the search did not use: 8, 9, 10." in text
    assert f"# {describe_excess(candidates)}\n" in text
    (tmp_path / "best.yaml").write_text(text)
    config = resolve("CartPole-v1", {}, config_file=tmp_path / "best.yaml").config
    assert (config.algorithm.learning_rate, config.policy.activation) == (8e-4, "relu")
    assert (config.num_envs, config.policy.network_arch, config.algorithm.batch_size) == (4, (512, 512), 2048)
    assert config.run.timesteps == 1_000_000


def test_a_trial_counts_by_its_last_evaluation_and_a_retest_by_its_own_episodes(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert read_score(run) is read_retest(run, "return") is None
    run.eval.mkdir()

    def write(step: int, suite: str, mean: float | None, score: float | None = None) -> None:
        outcomes = {"won": {"rate": mean and mean / 10, "low": None, "high": None}}
        result = {"step": step, "suite": suite, "return_mean": mean, "score": score, "outcomes": outcomes}
        (run.eval / f"step_{step:012}-{suite}.json").write_text(json.dumps(result))

    write(100, "select", 7.0, 0.6)
    write(200, "select", 3.0, 0.4)
    assert (read_score(run), read_retest(run, "return")) == (0.4, None)
    write(200, "retest", 2.0)
    assert (read_score(run), read_retest(run, "return"), read_retest(run, "won")) == (0.4, 2.0, 0.2)
    write(300, "select", None)
    write(300, "retest", None)
    assert read_score(run) is read_retest(run, "return") is read_retest(run, "won") is None
