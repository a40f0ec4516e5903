"""Runs whose critic sees more than the actor: who learns what, who needs what, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mission_gym as mg
from mission_gym.config.rules import apply_rules
from mission_gym.errors import ConfigError, UsageError
from mission_gym.run.branch import branch_run
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.settle import settle
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.resolve import find_run
from mission_gym.store.rundir import RunDir
from runs import drain

BLIND: dict[str, Any] = {
    "seed": 1, "n_envs": 8, "n_steps_per_env": 64, "learning_rate": 2e-3, "gamma": 0.0, "n_epochs": 6,
    "network_arch": "32", "tensorboard": False, "progress": False, "eval_freq": 0, "timesteps": 10_000,
    "normalize_returns": False, "threads": 1,
}  # fmt: skip
SMALL = BLIND | {
    "timesteps": 256,
    "n_envs": 2,
    "n_steps_per_env": 32,
    "n_epochs": 1,
    "vector": "serial",
    "overlap": "off",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> mg.Run:
    folder = str(tmp_path_factory.mktemp("runs"))
    return mg.train("toys:Blindfold", runs_dir=folder, critic_keys="hidden", num_workers=2, **BLIND)


def explained(run: mg.Run) -> float:
    return [row for row in run.metrics() if row["event"] == "progress"][-1]["train/explained_variance"]


def test_the_critic_knows_and_the_actor_does_not_cheat(run: mg.Run, tmp_path: Path) -> None:
    """Luck is nearly all of the variance; blind play finds a quarter of the prizes, whoever sees them all."""
    assert explained(run) > 0.9
    assert run.evaluate(episodes=100)["return_mean"] < 10.0
    seeing = mg.train("toys:Blindfold", runs_dir=str(tmp_path), **BLIND)
    assert seeing.evaluate(episodes=100)["return_mean"] > 15.0


def test_a_loaded_policy_acts_without_the_keys(run: mg.Run) -> None:
    policy = mg.load(run.path)
    noise = np.random.default_rng(0).uniform(-1, 1, (64, 2)).astype(np.float32)
    lacking, _ = policy.predict({"noise": noise})
    for prize in range(4):
        hidden = {"prize": np.full(64, prize), "luck": np.full((64, 1), 2.0 - prize)}
        having, _ = policy.predict({"noise": noise, "hidden": hidden})
        np.testing.assert_array_equal(lacking, having)
    assert policy.predict({"noise": noise[0]})[0].shape == ()
    with pytest.raises(UsageError, match=r"noise has shape \(3,\); the policy"):
        policy.predict({"noise": np.zeros((2, 3), np.float32)})


def test_the_plan_tells_it_and_checkpoints_keep_statistics_of_all(run: mg.Run) -> None:
    facts = next(row for row in run.metrics() if row["event"] == "plan")["time/plan"]["facts"]
    assert any("also reads hidden.luck, hidden.prize" in fact["value"] for fact in facts)
    arrays = last_policy(run)
    assert arrays["actor.0.weight"].shape == (32, 2)
    assert not [name for name in arrays if name.startswith("critic.")]
    assert arrays["normalizer.var"][2] == pytest.approx(4.0, rel=0.1)  # of luck, the first of the critic's


def last_policy(run: mg.Run) -> dict[str, np.ndarray]:
    return load_checkpoint(list_checkpoints(RunDir(run.path).checkpoints)[-1].path).policy


@pytest.mark.parametrize("flags", [{"acting": "torch", "kernel": "torch"}, {"overlap": "on"}])
def test_the_first_ratios_are_1(flags: dict[str, Any], tmp_path: Path) -> None:
    run = mg.train("toys:Blindfold", runs_dir=str(tmp_path), critic_keys="hidden", **SMALL | flags)
    rows = [row for row in run.metrics() if row["event"] == "progress"]
    assert max(row["train/first_ratio_error"] for row in rows) < 1e-5


def test_pictures_of_the_critic_alone(tmp_path: Path) -> None:
    run = mg.train("toys:DictMask", runs_dir=str(tmp_path), critic_keys="camera,colour", **SMALL)
    body = {"pose": np.zeros(3, np.float32), "switches": np.zeros(2, np.int8)}
    policy = mg.load(run.path)
    action, _ = policy.predict({"body": body}, mask=np.array([0, 1, 0, 0, 1]))
    np.testing.assert_array_equal(action, [1, 1])


def refuse(env: str, keys: str, **flags: Any) -> str:
    resolved, _ = apply_rules(resolve(env, SMALL_FLAGS | {"critic_keys": keys} | flags))
    with pytest.raises(ConfigError) as caught:
        settle(resolved, open_environment(resolved.config, {}))
    return str(caught.value)


SMALL_FLAGS = {name: value for name, value in SMALL.items() if name != "progress"}


@pytest.mark.parametrize(
    ("env", "keys", "said"),
    [
        (
            "toys:Blindfold",
            "hiden.luck",
            "no key 'hiden.luck' (did you mean 'hidden.luck'?); it has hidden.luck",
        ),
        ("toys:Blindfold", "noise,hidden", "names the whole observation, so the actor would see nothing"),
        (
            "CartPole-v1",
            "state",
            "needs a Dict observation with these keys, and CartPole-v1 observes one Box",
        ),
    ],
)
def test_keys_that_make_no_sense_are_refused(env: str, keys: str, said: str) -> None:
    message = refuse(env, keys)
    assert said in message
    assert "[flag --critic-keys]" in message


def test_a_mask_is_no_key_for_anybody() -> None:
    resolved, _ = apply_rules(resolve("toys:Blindfold", SMALL_FLAGS | {"critic_keys": "action_mask"}))
    opened = open_environment(resolved.config, {})
    masked = replace(opened, spec=replace(opened.spec, mask_source="obs:action_mask"))
    with pytest.raises(ConfigError, match="'action_mask' is the action mask, which neither network reads"):
        settle(resolved, masked)


def test_dqn_has_no_critic(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="critic_keys=hidden is not used: dqn has no critic; remove it"):
        mg.train("toys:Blindfold", runs_dir=str(tmp_path), critic_keys="hidden", algo="dqn", vector="serial")


def test_a_branch_keeps_the_keys(run: mg.Run, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"critic_keys: hidden -> hidden\.luck: the actor of run .* start a new run"
    ):
        branch(run, tmp_path, critic_keys="hidden.luck")
    with pytest.raises(UsageError, match="critic_keys: hidden -> none"):
        branch(run, tmp_path, critic_keys="")
    child = branch(run, tmp_path, gamma=0.1)
    assert child.config.policy.critic_keys == ("hidden",)


def branch(run: mg.Run, tmp_path: Path, **flags: Any) -> Any:
    wanted = {"runs_dir": str(tmp_path), "timesteps": 10_752} | flags
    with branch_run(find_run(str(run.path), tmp_path), wanted, lambda event: None) as session:
        drain(session)
        return session
