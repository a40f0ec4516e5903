"""One vector for all evaluations of a run: each begins as in a new one."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from mission_gym.errors import EnvFailure
from mission_gym.rollout.playing import Actor
from mission_gym.run.config import resolve
from mission_gym.run.environment import Environment, open_environment
from mission_gym.run.evaluation import Evaluator
from mission_gym.streams import suite_seeds


class Carrying(gym.Env[Any, Any]):
    """Pays less with every reset since it was built; raises on one seed of the suite. Its process is killed
    in the first step over all processes with `once`, a path, or in each with `always`."""

    def __init__(self, fails: bool = False, once: str = "", always: bool = False) -> None:
        self._once, self._always = once, always
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._resets = 0
        self._fails = fails
        self._bad = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._resets += 1
        self._bad = self._fails and seed == suite_seeds("select", 3)[2]
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._always:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._once:
            with suppress(FileExistsError):
                Path(self._once).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        if self._bad:
            raise RuntimeError("this seed always fails")
        return np.zeros(1, np.float32), 1.0 / self._resets, True, False, {}


def open_toy(vector: str, **kwargs: Any) -> Environment:
    config = resolve(
        "<toy>", {"vector": vector, "num_workers": 1} if vector == "workers" else {"vector": vector}
    )
    return open_environment(config.config, {}, partial(Carrying, **kwargs))


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
        results = [evaluator.play(Actor(act)) for _ in range(8)]  # more than there are restarts
    assert [result.episodes for result in results if result] == [3] * 8


@pytest.mark.parametrize("vector", ["workers", "threads"])
def test_a_kill_of_the_only_process_that_plays_costs_no_evaluation(vector: str, tmp_path: Path) -> None:
    with Evaluator(open_toy(vector, once=str(tmp_path / "once")), "select", 4) as evaluator:
        result = evaluator.play_all(Actor(act))
    assert (result.episodes, result.return_mean) == (4, 1.0)


def test_episodes_that_all_fail_again_are_told() -> None:
    with (
        Evaluator(open_toy("workers", always=True), "select", 2) as evaluator,
        pytest.raises(EnvFailure, match=r"^all 2 episodes of an evaluation failed, 2 times; .* \[<toy>\]$"),
    ):
        evaluator.play_all(Actor(act))
