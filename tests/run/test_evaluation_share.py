"""Evaluations of a run by counted steps: what is settled, waited for, moved and taken up again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from mission_gym.config.plain_yaml import read_stored
from mission_gym.run.branch import branch_run
from mission_gym.run.config import read_config, resolve
from mission_gym.run.resume import resume_run
from mission_gym.run.session import Session
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.evals import read_evals
from mission_gym.store.resolve import RunRef
from mission_gym.store.rundir import RunDir

FLAGS = {
    "n_envs": 4, "n_steps_per_env": 16, "batch_size": 64, "n_epochs": 1, "timesteps": 12_032,
    "eval_episodes": 2, "network_arch": "8", "tensorboard": False, "vector": "serial", "tune": False,
    "checkpoint_freq": 100_000,
}  # fmt: skip
LENGTH = 100  # of an episode; the 64 steps before the start see none end


class Long(gym.Env[Any, Any]):
    """Episodes of 100 steps, which it does not declare; it pays more for action 1."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._look(), float(action), False, self.steps >= LENGTH, {}

    def _look(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


@pytest.fixture(autouse=True)
def _fine_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of seconds, in which evaluations may come as often as they are paid for."""
    monkeypatch.setattr("mission_gym.config.rules._MIN_EVAL_FREQ", 10)
    monkeypatch.setattr("mission_gym.run.selection._ROUND", 1)


@contextmanager
def start(folder: Path, said: list[dict[str, Any]] | None = None, **flags: Any) -> Iterator[Session]:
    resolved = resolve("<long>", FLAGS | {"runs_dir": str(folder)} | flags)
    with start_run(resolved, ([] if said is None else said).append, Long) as session:
        yield session


def drain(session: Session, until: int = 10**9) -> RunDir:
    for progress in session.updates():
        if progress.step >= until:
            break
    return session.run


def evaluated(run: RunDir) -> list[int]:
    return [result["step"] for result in read_evals(run) if result["suite"] == "select"]


def counters(run: RunDir) -> dict[str, Any]:
    return dict(load_checkpoint(list_checkpoints(run.checkpoints)[-1].path).state_json["counters"]["session"])


def test_evaluations_wait_until_they_are_a_tenth_of_the_steps(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    with start(tmp_path, said) as session:
        run = drain(session)
    # 16 steps of each without an end count as an episode of 32: 2 are 7 % of 915. They take 200.
    stored = read_stored(run.config_yaml)["evaluation.eval_freq"]
    assert stored == (915, "auto")
    assert evaluated(run) == [2880, 5760, 8576, 12_032]
    assert counters(run)["eval_steps"] == 800
    plan = next(event for event in said if event["event"] == "plan")["time/plan"]
    fact = next(fact for fact in plan["facts"] if fact["name"] == "evaluations")
    assert fact["value"] == "13"
    assert fact["reason"].startswith("2 episodes every 915 steps: about ")


def test_what_was_settled_is_what_the_run_keeps_everywhere(tmp_path: Path) -> None:
    with start(tmp_path, timesteps=640) as session:
        run = drain(session)
    config = read_config(run.config_yaml).config
    assert config.evaluation.eval_freq == session.config.evaluation.eval_freq == 915
    last = load_checkpoint(list_checkpoints(run.checkpoints)[-1].path)
    assert last.state_json["config"]["evaluation.eval_freq"] == 915
    assert evaluated(run) == [640]  # the last one is made in any case


def test_a_given_frequency_is_obeyed_but_for_one_shortly_before_the_end(tmp_path: Path) -> None:
    with start(tmp_path, eval_freq=640, timesteps=3264) as session:
        run = drain(session)
    assert evaluated(run) == [640, 1280, 1920, 2560, 3264]  # not 3,200, one rollout earlier


@pytest.mark.parametrize("until", [2816, 2880, 4000])
def test_a_resume_waits_as_if_it_had_not_been_stopped(tmp_path: Path, until: int) -> None:
    with start(tmp_path / "straight") as session:
        straight = drain(session)
    with start(tmp_path / "cut") as session:
        cut = drain(session, until)
    said: list[dict[str, Any]] = []
    with resume_run(cut, said.append, source=Long) as session:
        drain(session)
    assert "the resume is exact" in said[0]["notes"]
    assert evaluated(cut) == evaluated(straight)
    assert counters(cut) == counters(straight)


def test_a_branch_pays_with_its_own_steps(tmp_path: Path) -> None:
    with start(tmp_path, timesteps=2048) as session:
        parent = drain(session)
    flags = {"runs_dir": str(tmp_path), "timesteps": 2048 + 12_032}
    with branch_run(RunRef(parent, None), flags, [].append, source=Long) as session:
        child = drain(session)
    assert evaluated(child) == [2048 + step for step in (2880, 5760, 8576, 12_032)]


def test_a_new_evaluation_is_not_made_again_when_the_time_is_over(tmp_path: Path) -> None:
    with start(tmp_path, eval_freq=640, timesteps=6400, max_time="1h") as session:
        for progress in session.updates():
            if progress.step == 704:
                session._deadline = 0.0
    assert session.run.read_status()["cause"] == "max_time reached"
    assert evaluated(session.run) == [640]
    with start(tmp_path, eval_freq=640, timesteps=6400, max_time="1h") as session:
        for progress in session.updates():
            if progress.step == 1024:
                session._deadline = 0.0
    assert evaluated(session.run) == [640, 1024]
