"""The trials that are trained again, the verdict, and the preset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mission_gym.fleet.sweep.study import SweepTrial
from mission_gym.fleet.sweep.trials import choose_candidates, describe_verdict, make_preset, read_result
from mission_gym.intervals import describe_seeds
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
    assert describe_verdict([default]).startswith("no setting beats the default")


def test_equal_settings_are_rarely_called_better() -> None:
    """The winner is the best of three by the seeds that it is tested on."""
    rng, num_better = np.random.default_rng(0), 0
    for _ in range(1000):
        found = [make_candidate("search", *rng.normal(size=5)) for _ in range(3)]
        found.sort(key=lambda each: each.mean or 0.0, reverse=True)
        verdict = describe_verdict([*found, make_candidate("default", *rng.normal(size=5))])
        num_better += verdict.startswith("the winner is better")
    assert num_better <= 50


def test_the_preset_contains_given_and_found_values(tmp_path: Path) -> None:
    flags = {"activation": "relu", "learning_rate": "1e-5", "timesteps": "9k", "n_envs": "4"}
    base = resolve("CartPole-v1", flags, preset="fast")
    axes = [Axis(path="ppo.learning_rate", low=1e-5, high=1e-2, scale="log")]
    question = Question(
        asked={}, values={}, over="", axes=axes, starts=[], measure="return", trials=1, budget_s=None,
        seeds=[0], retest=1, retest_seeds=[1, 2], folder="",
    )  # fmt: skip
    text = make_preset(base, make_trial(7, 9.0), make_candidate("search", 8.0, 9.0, 10.0), question)
    assert "mean return 9 after 9,000 steps" in text
    assert "# on 3 seeds that the search did not use: 8, 9, 10." in text
    assert "so its mean is somewhat too high" in text
    (tmp_path / "best.yaml").write_text(text)
    config = resolve("CartPole-v1", {}, config_file=tmp_path / "best.yaml").config
    assert (config.algorithm.learning_rate, config.policy.activation) == (8e-4, "relu")
    assert (config.num_envs, config.policy.network_arch, config.algorithm.batch_size) == (4, (512, 512), 2048)
    assert config.run.timesteps == 1_000_000


def test_a_run_counts_by_its_last_evaluation(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert read_result(run, "return") is None
    run.eval.mkdir()
    for step, mean in ((100, 7.0), (200, 3.0)):
        outcomes = {"won": {"rate": 0.5, "low": 0.4, "high": 0.6}}
        result = {"step": step, "suite": "select", "return_mean": mean, "score": 0.4, "outcomes": outcomes}
        (run.eval / f"step_{step:012}-select.json").write_text(json.dumps(result))
    run.metrics_jsonl.write_text('{"event": "progress", "time/time_elapsed": 12.5}\n')
    assert read_result(run, "return") == (0.4, 3.0, 12.5)
    assert read_result(run, "won") == (0.4, 0.5, 12.5)
    (run.eval / "step_000000000300-select.json").write_text('{"step": 300, "suite": "select", "score": null}')
    assert read_result(run, "return") is None
