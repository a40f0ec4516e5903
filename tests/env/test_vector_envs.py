"""EnvPool behind Gymnasium's interface: the real one where it is installed, else a stand-in with its API."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from mission_gym.env.factory import EnvRequest, make_factory, make_vector_factory
from mission_gym.env.probe import probe_vector
from mission_gym.errors import EnvContractError, UsageError
from mission_gym.vector.batched import BatchedVec
from mission_gym.vector.make_vec import make_vec


class Pool(SyncVectorEnv):
    """What `envpool.make` gives (1.2): seeds when it is made, next-step resets, infos without row marks."""

    def __init__(self, task_id: str, num_envs: int, seed: Any = 42) -> None:
        super().__init__([lambda: gym.make(task_id)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
        self._seeds: Any = seed if isinstance(seed, list) else [seed + row for row in range(num_envs)]
        config = SimpleNamespace(max_episode_steps=gym.spec(task_id).max_episode_steps)
        self.spec = SimpleNamespace(  # type: ignore[assignment]
            config=config,
            gymnasium_observation_space=self.single_observation_space,
            gymnasium_action_space=self.single_action_space,
        )

    def reset(self, env_id: Any = None, *, seed: Any = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=self._seeds)
        self._seeds = [None] * self.num_envs
        return obs, {"env_id": np.arange(self.num_envs), "elapsed_step": np.zeros(self.num_envs, int)}

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(actions)
        infos = {"env_id": np.arange(self.num_envs), "players": {"env_id": np.arange(self.num_envs)}}
        return obs, reward.astype(np.float32), terminated, truncated, infos


def make_pool(task_id: str, env_type: str, num_envs: int = 1, **options: Any) -> Pool:
    assert env_type == "gymnasium"
    assert task_id in gym.registry, f"{task_id} is not supported, `envpool.list_all_envs()` may help."
    return Pool(task_id, num_envs, **options)


@pytest.fixture(params=["stand-in", "real"])
def envpool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "envpool", SimpleNamespace(make=make_pool))  # type: ignore[arg-type]
    elif importlib.util.find_spec("envpool") is None:
        pytest.skip("envpool is not installed")


@pytest.mark.usefixtures("envpool")
def test_a_pool_is_a_batched_environment() -> None:
    request = EnvRequest("envpool:CartPole-v1")
    factory = make_vector_factory(request)
    spec = probe_vector(factory, request.env_id)
    assert (spec.max_episode_steps, spec.action.nvec, spec.leaves[0].shape) == (500, (2,), (4,))
    runs = []
    for _ in range(2):
        with BatchedVec(factory(3), spec, lambda row, number: 10 + row + number) as vec:
            shown = [vec.reset().obs[0].copy()]
            lengths = np.zeros(3, int)
            for _ in range(30):
                batch = vec.step(np.zeros(3, np.int64))
                lengths += batch.valid
                shown.append(batch.obs[0].copy())
                for episode in batch.episodes:
                    assert (episode.ret, episode.length) == (lengths[episode.env_id],) * 2
                    assert episode.terminated
                    lengths[episode.env_id] = 0
            assert sum(vec.episode_numbers()) >= 6
            runs.append(np.stack(shown))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert len(np.unique(runs[0][0][:, 0])) == 3


@pytest.mark.usefixtures("envpool")
def test_make_vec_takes_a_pool_by_name() -> None:
    vec = make_vec("envpool:CartPole-v1", 2, backend="batched", autoreset_mode="next_step")
    first, _ = vec.reset(seed=3)
    assert first in vec.observation_space
    again, _ = vec.reset()
    assert not np.array_equal(first, again)
    np.testing.assert_array_equal(vec.reset(seed=[3, 4])[0], first)
    vec.step(vec.action_space.sample())
    vec.close()
    with pytest.raises(EnvContractError, match=r"CartPool-v1' raised AssertionError: .*list_all_envs"):
        make_vec("envpool:CartPool-v1", 2, backend="batched", autoreset_mode="next_step")


def test_pools_need_the_package_and_the_batched_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is already vectorised; use --vector batched"):
        make_factory(EnvRequest("envpool:CartPole-v1"))()
    monkeypatch.setitem(sys.modules, "envpool", None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no module named 'envpool'; install it"):
        make_vector_factory(EnvRequest("envpool:CartPole-v1"))(2)
