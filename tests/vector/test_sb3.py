"""SB3 on our workers: the same episodes as on its own DummyVecEnv, and a training that runs."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import mission_gym as mg

sb3 = pytest.importorskip("stable_baselines3")


@pytest.mark.parametrize("backend", ["serial", "workers"])
def test_equal_to_dummy_vec_env(backend: str) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv

    theirs = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 3)
    ours = mg.vector.SB3VecEnv("CartPole-v1", 3, backend=backend)
    for vec in (theirs, ours):
        vec.seed(5)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    rng = np.random.default_rng(0)
    for _ in range(120):
        actions = rng.integers(0, 2, 3)
        got, expected = ours.step(actions), theirs.step(actions)
        for mine, other in zip(got[:3], expected[:3], strict=True):
            np.testing.assert_array_equal(mine, other)
            assert mine.dtype == other.dtype
        for mine, other in zip(got[3], expected[3], strict=True):
            assert mine.keys() == other.keys()
            assert mine["TimeLimit.truncated"] == other["TimeLimit.truncated"]
            if "terminal_observation" in mine:
                np.testing.assert_array_equal(mine["terminal_observation"], other["terminal_observation"])
    ours.set_attr("gravity", 3.0, indices=[1])
    assert ours.get_attr("gravity") == [9.8, 3.0, 9.8]
    assert ours.env_method("get_wrapper_attr", "gravity", indices=[1]) == [3.0]
    assert ours.env_is_wrapped(gym.wrappers.TimeLimit) == [True] * 3
    ours.close()
    theirs.close()


def test_sb3_trains_on_our_workers() -> None:
    vec = mg.vector.SB3VecEnv("CartPole-v1", 4, num_workers=2)
    model = sb3.PPO("MlpPolicy", vec, n_steps=16, batch_size=32, n_epochs=1, seed=1)
    model.learn(128)
    assert model.num_timesteps == 128
    vec.close()


def make_dummy(num_envs: int):
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([lambda: gym.make("CartPole-v1")] * num_envs)


def test_a_vec_env_of_sb3_is_taken_as_a_batched_one() -> None:
    ours = mg.make_vec("test_sb3:make_dummy", 3, backend="batched")
    same_step = gym.vector.AutoresetMode.SAME_STEP
    theirs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=same_step)
    np.testing.assert_array_equal(ours.reset(seed=5)[0], theirs.reset(seed=5)[0])
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(80):
        actions = rng.integers(0, 2, 3)
        got, expected = ours.step(actions), theirs.step(actions)
        for mine, other in zip(got[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(mine, other)
        for row in np.flatnonzero(got[2] | got[3]):
            ended += 1
            np.testing.assert_array_equal(got[4]["final_obs"][row], expected[4]["final_obs"][row])
    assert ended > 3
    ours.close()
    theirs.close()


def test_it_is_trained_on(tmp_path) -> None:
    flags = {"vector": "batched", "n_envs": 4, "n_steps": 16, "timesteps": 128, "eval_freq": 0}
    run = mg.train("test_sb3:make_dummy", progress=False, runs_dir=str(tmp_path), tensorboard=False, **flags)
    assert run.status()["state"] == "done"
