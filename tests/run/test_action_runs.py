"""Actions with parts and masks over combinations, as runs: known optima and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import mission_gym as mg
from action_toys import Brittle, Couples, Guarded, Levers, Throw
from mission_gym.check.repro import replay_bundle, write_bundle
from mission_gym.env.factory import EnvRequest
from mission_gym.env.probe import probe
from mission_gym.env.slot import EnvSlot
from mission_gym.errors import ConfigError, EnvContractError, EnvFailure
from mission_gym.policy.sampling import draw_random
from mission_gym.run.baselines import run_baselines
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.store.rundir import RunDir

PPO = {
    "seed": 1, "n_envs": 8, "n_steps_per_env": 64, "learning_rate": 2e-3, "gamma": 0.5, "n_epochs": 6,
    "network_arch": "32", "tensorboard": False, "progress": False, "eval_freq": 0, "vector": "serial",
}  # fmt: skip
DQN = {
    "algo": "dqn", "seed": 1, "n_envs": 4, "n_steps_per_env": 4, "replay_ratio": 0.5, "learning_starts": 200,
    "learning_rate": 3e-3, "gamma": 0.1, "network_arch": "64", "target_update_interval": 100,
    "exploration_fraction": 0.5, "tensorboard": False, "progress": False, "eval_freq": 0, "vector": "serial",
}  # fmt: skip


@pytest.mark.parametrize(
    ("toy", "timesteps", "least"),
    [("Throw", 20_000, 35.0), ("Levers", 10_000, 19.0), ("Couples", 6_000, 9.5), ("Guarded", 6_000, 19.0)],
)
def test_ppo_finds_the_known_optimum(toy: str, timesteps: int, least: float, tmp_path: Path) -> None:
    """The toys raise for what is masked, or not of their spaces: one such action would end an episode."""
    run = mg.train(f"action_toys:{toy}", timesteps=timesteps, runs_dir=str(tmp_path), **PPO)
    assert run.evaluate(episodes=20)["return_mean"] >= least
    assert [row for row in run.metrics() if row["event"] == "progress"][-1]["rollout/env_failures"] == 0


@pytest.mark.parametrize(
    ("toy", "kwargs", "timesteps", "least"),
    [("Couples", {}, 4_000, 9.0), ("Guarded", {"force": False}, 4_000, 18.0), ("Levers", {}, 8_000, 15.0)],
)
def test_dqn_chooses_among_combinations(
    toy: str, kwargs: dict[str, Any], timesteps: int, least: float, tmp_path: Path
) -> None:
    flags = DQN | {"env_kwargs": kwargs, "timesteps": timesteps}
    run = mg.train(f"action_toys:{toy}", runs_dir=str(tmp_path), **flags)
    assert run.evaluate(episodes=20)["return_mean"] >= least


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Throw", r"action_toys:Throw acts with Dict, which has real numbers \(aim\); use ppo"),
        ("Guarded", r"which has real numbers \(force\); use ppo"),
        ("Wide", r"acts with MultiDiscrete of 1000000 combinations, over the limit of 65536; use ppo"),
    ],
)
def test_dqn_refuses_what_it_can_not_count_out(env: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        mg.train(f"action_toys:{env}", runs_dir=str(tmp_path), **DQN | {"timesteps": 1000})


@pytest.mark.parametrize("kernel", ["compiled", "torch"])
@pytest.mark.parametrize("env", ["Throw", "Guarded"])
def test_the_first_ratios_are_1(env: str, kernel: str, tmp_path: Path) -> None:
    flags = PPO | {"kernel": kernel, "timesteps": 1024, "runs_dir": str(tmp_path)}
    run = mg.train(f"action_toys:{env}", **flags)
    rows = [row for row in run.metrics() if row["event"] == "progress"]
    assert max(row["train/first_ratio_error"] for row in rows) < 1e-5


def test_predict_gives_actions_of_the_space(tmp_path: Path) -> None:
    for toy, batch_keys in ((Throw, ["aim", "hand", "how"]), (Guarded, ["force", "place", "tool"])):
        name = f"action_toys:{toy.__name__}"
        run = mg.train(name, runs_dir=str(tmp_path), **PPO | {"timesteps": 512})
        policy, env = mg.load(run.path), toy()
        obs, info = env.reset(seed=0)
        mask = info.get("action_mask")
        for deterministic in (True, False):
            action, _ = policy.predict(obs, deterministic=deterministic, mask=mask)
            assert env.action_space.contains(action)
            env.step(action)
            obs, mask = env.observe(), env.info().get("action_mask")
        masks = None if mask is None else {key: np.stack([each] * 3) for key, each in mask.items()}
        actions, _ = policy.predict(np.stack([obs] * 3), mask=masks)
        assert sorted(actions) == batch_keys
        assert gym.vector.utils.batch_space(env.action_space, 3).contains(actions)


def open_toy(make: Any) -> Any:
    return open_environment(resolve("toy", {"vector": "serial"}).config, {}, make)


def test_baselines_play_actions_with_parts() -> None:
    class Scripted(Levers):
        @property
        def baselines(self) -> dict[str, Any]:
            def perfect(obs: Any, info: dict[str, Any]) -> Any:
                return obs[0], (obs[1:3], obs[3:])

            return {"perfect": perfect}

    results = run_baselines(open_toy(Scripted), 20)
    assert results["perfect"]["return_mean"] == 20.0
    share = (1 / 3 + 1 / 2 + 1 / 4 + 1 / 2) / 4
    assert results["random"]["return_mean"] == pytest.approx(20 * share, rel=0.1)
    assert results["noop"]["return_mean"] == pytest.approx(20 * share, rel=0.1)
    nothing = run_baselines(open_toy(Guarded), 2, names=["noop"])["noop"]
    assert nothing["length_mean"] == 20.0  # the first legal choice of each part


def test_a_joint_mask_is_never_violated_by_random_play() -> None:
    assert run_baselines(open_toy(Couples), 200, names=["random"])["random"]["length_mean"] == 10.0


def test_a_failure_names_the_action_and_its_bundle_replays(tmp_path: Path) -> None:
    spec, rng = probe(Brittle, "toy"), np.random.default_rng(0)
    slot = EnvSlot(Brittle, spec, 0, lambda episode: episode)
    slot.reset(0)
    drawn = spec.action.to_env(draw_random(spec.action, None, rng, 20))
    with pytest.raises(EnvFailure, match=r"the action was \{'aim': array\(.*'hand': np.int64") as caught:
        list(map(slot.step, drawn))
    bundle = write_bundle(RunDir(tmp_path), caught.value, EnvRequest("action_toys:Brittle"))
    assert bundle is not None
    replay = replay_bundle(bundle)
    assert replay.failed
    assert str(caught.value).partition("the string broke at ")[2].partition(";")[0] in replay.text


class Purse(Levers):
    """Pays in three currencies."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward, 0.0, 1.0]), *rest


def test_a_vector_reward_names_the_wrapper_and_its_weights(tmp_path: Path) -> None:
    flags = PPO | {"timesteps": 512, "runs_dir": str(tmp_path)}
    with pytest.raises(
        EnvContractError, match=r"3 numbers, but only one can be learned from; .* --wrap weigh:1,1,1"
    ):
        mg.train(Purse, **flags)
    with pytest.raises(EnvContractError, match=r"weigh has 2 weights and the reward has shape \(3,\)"):
        mg.train(Purse, wrap=["weigh:1,0.5"], **flags)
    run = mg.train(Purse, wrap=["weigh:1,0,0.5"], **flags)
    assert run.evaluate(episodes=2)["return_mean"] >= 10.0


class Free(gym.Env[Any, Any]):
    """A Box without bounds: reward is minus the distance to 3 and -2."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    best = np.array([3.0, -2.0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), -float(np.abs(action - self.best).sum()), True, False, {}


def test_a_box_without_bounds_is_in_the_environments_own_units(tmp_path: Path) -> None:
    flags = PPO | {"timesteps": 15_000, "learning_rate": 5e-3, "runs_dir": str(tmp_path)}
    run = mg.train(Free, **flags)
    assert run.evaluate(episodes=5)["return_mean"] >= -1.0  # 0 is the best, and 0 for both gives -5
