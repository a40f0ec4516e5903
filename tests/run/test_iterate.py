"""The loop of `mg.iterate`: its own numbers, checkpoints, stops, values and policy, and how it ends."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mission_gym as mg
from mission_gym.errors import ConfigError, UsageError
from mission_gym.run.branch import branch_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.resolve import RunRef
from mission_gym.store.rundir import RunDir
from runs import DQN, PPO, assert_equal_runs, resume, rows, silent

ENV = "CartPole-v1"
QUICK = {"eval_freq": 0, "eval_episodes": None}


def loop(tmp_path: Path, **flags: Any) -> Any:
    wanted = (DQN if flags.get("algo") == "dqn" else PPO) | {"runs_dir": str(tmp_path)} | flags
    return mg.iterate(ENV, **{name: value for name, value in wanted.items() if value is not None})


def test_a_logged_number_is_in_the_row_of_its_update_in_every_sink(tmp_path: Path) -> None:
    for update in loop(tmp_path, tensorboard=True):
        update.log("seen/at", 1.0)
        update.log("seen/at", update.step)  # the last one counts
        if update.step == 128:
            update.log("once", np.float32(2.5))
    run = RunDir(update.run.path)
    found = rows(run, "progress")
    assert [row["user/seen/at"] for row in found] == [row["step"] for row in found]
    assert [row["step"] for row in found if "user/once" in row] == [128]
    with run.progress_csv.open() as file:
        table = [row for row in csv.DictReader(file) if row["user/once"]]
    assert [(row["time/total_timesteps"], row["user/once"]) for row in table] == [("128", "2.5")]
    (path,) = run.tensorboard.iterdir()
    assert path.read_bytes().count(b"user/once") == 1


def test_a_number_waits_for_the_next_row_even_across_a_resume(tmp_path: Path) -> None:
    for update in loop(tmp_path, log_interval=3, **QUICK):
        if update.step == 64:
            update.log("early", 1)
        if update.step == 128:
            break
    run = RunDir(update.run.path)
    assert not rows(run, "progress")
    resume(run)
    assert [row["step"] for row in rows(run, "progress") if "user/early" in row] == [192]


@pytest.mark.parametrize(("name", "value"), [("", 1), ("a b", 1), ("x" * 101, 1), ("n", "many"), ("n", None)])
def test_odd_names_and_values_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    for update in loop(tmp_path, **QUICK):
        with pytest.raises(UsageError, match=r"is not a name for a metric; use|is not a number; log"):
            update.log(name, value)
        break


def test_save_writes_a_checkpoint_with_the_row_of_its_update(tmp_path: Path) -> None:
    straight = [update.run for update in loop(tmp_path / "straight")][-1]
    for update in loop(tmp_path, checkpoint_freq=1000):
        if update.step == 192:
            path = update.save()
            kept = load_checkpoint(path)
            break
    assert kept.step == 192
    run = RunDir(update.run.path)
    resume(run)
    assert rows(run) == rows(RunDir(straight.path))


def test_stop_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    steps = []
    for update in loop(tmp_path, **QUICK):
        steps.append(update.step)
        if update.step == 128:
            update.stop("enough")
    assert steps == [64, 128]
    status = update.run.status()
    assert (status["state"], status["cause"], status["step"]) == ("stopped", "enough", 128)
    with pytest.raises(UsageError, match="the update at step 128 is over; call its methods inside the loop"):
        update.save()


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"learning_rate_final": 1e-5},
        {"overlap": "on"},
        {"algo": "dqn", "learning_rate_final": 1e-5},
    ],
    ids=["constant", "schedule", "overlap", "dqn"],
)
@pytest.mark.parametrize("stop", ["at once", "later"])
def test_a_set_learning_rate_survives_a_resume_exactly(flags: Any, stop: str, tmp_path: Path) -> None:
    change, per_update = (96, 16) if flags.get("algo") == "dqn" else (128, 64)

    def train(folder: Path, until: int | None) -> RunDir:
        for update in loop(folder, **flags):
            if update.step == change:
                update.set(learning_rate=2e-4)
            if update.step == until:
                break
        return RunDir(update.run.path)

    straight = train(tmp_path / "straight", None)
    rates = {row["step"]: row.get("train/learning_rate") for row in rows(straight, "progress")}
    assert rates[change] != 2e-4
    assert {rate for step, rate in rates.items() if step > change} == {2e-4}
    (event,) = rows(straight, "set")
    assert (event["step"], event["values"]) == (change, {"learning_rate": 2e-4})

    stopped = train(tmp_path / "stopped", change if stop == "at once" else change + per_update)
    assert "the resume is exact" in resume(stopped)
    assert_equal_runs(stopped, straight)


def test_a_value_set_after_save_is_in_that_checkpoint(tmp_path: Path) -> None:
    for update in loop(tmp_path, checkpoint_freq=1000, **QUICK):
        path = update.save()
        update.set(learning_rate=2e-4)
        state = load_checkpoint(path).state_json["counters"]["session"]
        assert state["settings"] == {"learning_rate": 2e-4}
        break


def test_a_branch_inherits_a_set_value_unless_it_is_given(tmp_path: Path) -> None:
    for update in loop(tmp_path, learning_rate_final=1e-5, **QUICK):
        update.set(learning_rate=2e-4, ent_coef=0.01)
        if update.step == 128:
            break
    ref = RunRef(RunDir(update.run.path), None)
    with branch_run(ref, {}, silent) as session:
        section: Any = session.config.algorithm
        assert (section.learning_rate, section.learning_rate_final, section.ent_coef) == (2e-4, None, 0.01)
    with branch_run(ref, {"learning_rate": 1e-3}, silent) as session:
        assert session.config.algorithm.learning_rate == 1e-3


def test_values_that_can_not_be_set_are_refused(tmp_path: Path) -> None:
    for update in loop(tmp_path, **QUICK):
        with pytest.raises(
            UsageError, match=r"'gamma' can't be set while training; update.set takes learning_rate"
        ):
            update.set(gamma=0.9)
        with pytest.raises(ConfigError, match=r"learning_rate=-1.0 should be greater than 0"):
            update.set(learning_rate=-1.0)
        assert not update._session.state.settings
        break


def test_the_policy_of_an_update_predicts_as_a_loaded_one(tmp_path: Path) -> None:
    env = gym.make(ENV)
    observation, _ = env.reset(seed=1)
    for update in loop(tmp_path, **QUICK):
        if update.step == 128:
            update.save()
            action, state = update.policy.predict(observation)
            assert state is None
            break
    loaded = mg.load(update.run.path)
    assert loaded.step == 128
    assert loaded.predict(observation)[0] == action


def test_a_callback_is_refused_with_the_way_to_do_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"for update in mg.iterate.*update.log, update.save"):
        mg.train(ENV, callback=print, runs_dir=str(tmp_path))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_saves_the_run_and_is_raised(name: str, tmp_path: Path) -> None:
    seen: list[mg.Update] = []

    def train() -> None:
        for update in loop(tmp_path, **QUICK):
            seen.append(update)
            os.kill(os.getpid(), getattr(signal, name))

    with pytest.raises(KeyboardInterrupt if name == "SIGINT" else SystemExit) as raised:
        train()
    (update,) = seen
    assert name == "SIGINT" or raised.value.code == 130
    status = update.run.status()
    assert (status["state"], status["cause"], status["step"]) == ("stopped", name, 64)
    assert list_checkpoints(RunDir(update.run.path).checkpoints)[-1].step == 64


def test_an_update_shows_its_step_and_return(tmp_path: Path) -> None:
    for update in loop(tmp_path, run_name="mine", **QUICK):
        assert repr(update).startswith("Update(step=64, ep_rew_mean=")
        assert "run='mine-" in repr(update)
        break
