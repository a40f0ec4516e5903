"""One vector for all evaluations of a run: each begins as in a new one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hazards import Fading
from mission_gym.errors import EnvFailure
from mission_gym.rollout.play import Actor
from mission_gym.run.config import resolve
from mission_gym.run.environment import Environment, open_environment
from mission_gym.run.evaluation import Evaluator
from mission_gym.run.start import start_run
from runs import drain


def open_toy(vector: str, **kwargs: Any) -> Environment:
    flags = {"vector": vector, "max_restarts": 1} | ({"num_workers": 1} if vector == "workers" else {})
    return open_environment(resolve("<toy>", flags).config, {}, partial(Fading, **kwargs))


def act(obs: Any, mask: Any, noise: Any, state: Any) -> tuple[Any, Any]:
    return np.zeros(len(obs[0]), np.int64), state


@pytest.mark.parametrize("vector", ["serial", "workers"])
def test_nothing_is_carried_from_one_evaluation_to_the_next(vector: str) -> None:
    with Evaluator(open_toy(vector), "select", 4) as evaluator:
        results = [evaluator.play(Actor(act)) for _ in range(3)]
    assert [result.return_mean for result in results if result] == [1.0] * 3


@pytest.mark.parametrize("vector", ["serial", "workers"])
def test_a_seed_that_always_fails_costs_that_episode_each_time(vector: str) -> None:
    with Evaluator(open_toy(vector, fails=True), "select", 4) as evaluator:
        results = [evaluator.play(Actor(act)) for _ in range(3)]  # more than there are restarts
    assert [result.episodes for result in results if result] == [3] * 3
    assert [result.document()["failed"] for result in results if result] == [1] * 3


@pytest.mark.parametrize("vector", ["workers", "threads"])
def test_a_kill_of_the_only_process_that_plays_costs_no_evaluation(vector: str, tmp_path: Path) -> None:
    with Evaluator(open_toy(vector, once=str(tmp_path / "once")), "select", 4) as evaluator:
        result = evaluator.play_all(Actor(act))
    assert (result.episodes, result.return_mean) == (4, 1.0)


@pytest.mark.parametrize(("vector", "most"), [("threads", 3), ("serial", None)])
def test_environments_that_wait_are_as_many_as_the_run_has(vector: str, most: int | None) -> None:
    config = resolve("<toy>", {"vector": vector, "n_envs": 3}).config
    environment = open_environment(config, {}, Fading)
    assert environment.most_playing == most
    with Evaluator(environment, "select", 8) as evaluator:
        assert evaluator.play_all(Actor(act)).episodes == 8
        assert evaluator._vec is not None
        assert evaluator._vec.num_envs == (most or 8)


def test_episodes_that_all_fail_again_are_told() -> None:
    with (
        Evaluator(open_toy("workers", always=True), "select", 2) as evaluator,
        pytest.raises(EnvFailure, match=r"^all 2 episodes of an evaluation failed, 2 times; .* \[<toy>\]$"),
    ):
        evaluator.play_all(Actor(act))


def test_a_run_warns_about_episodes_of_an_evaluation_that_failed(tmp_path: Path) -> None:
    """If crashes depend on the policy, the episodes that are left are a selection."""
    said: list[dict[str, Any]] = []
    flags = {
        "n_envs": 4, "n_steps_per_env": 16, "timesteps": 128, "eval_episodes": 4, "network_arch": "8",
        "tensorboard": False, "vector": "serial", "tune": False, "runs_dir": str(tmp_path),
    }  # fmt: skip
    with Evaluator(open_toy("serial", fails=True), "select", 4) as evaluator:
        result = evaluator.play_all(Actor(act))
    with start_run(resolve("toys:Identity", flags), said.append) as session:
        session.selection.add(0, result, 0.1)
        drain(session)
    (warning,) = (event["message"] for event in said if event["event"] == "warning")
    assert warning.startswith("1 of 4 episodes of the evaluation failed and are not counted")
