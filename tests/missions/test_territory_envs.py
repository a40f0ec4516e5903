"""The territory environments: actions, spaces and scripted policies. The rest is in test_contract.py."""

import numpy as np
import pytest

from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.errors import UsageError
from mission_gym_missions import TERRITORY_ID
from mission_gym_missions.territory.env import TerritoryEnv, TerritoryVectorEnv


def test_wrong_actions_are_explained():
    env = TerritoryEnv()
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"action 13 does not exist; use 0 \(wait\) or 1 to 12"):
        env.step(13)
    with pytest.raises(UsageError, match=r"takes integers from 0 to 12 of shape \(1,\)"):
        env.step(1.5)


def test_the_observation_is_an_image_and_numbers_for_every_size():
    spec = probe(make_factory(EnvRequest(TERRITORY_ID)), TERRITORY_ID)
    assert [leaf.kind for leaf in spec.leaves] == ["image", "vector"]
    large = TerritoryVectorEnv(2, size=256, num_bots=50)
    assert large.single_observation_space == TerritoryEnv().observation_space
    obs, _ = large.reset(seed=0)
    assert obs in large.observation_space
    large.close()


def test_the_scripted_policies_attack_and_grow():
    vec = TerritoryVectorEnv(2)
    for play in vec.baselines.values():
        obs, infos = vec.reset(seed=4)
        first = obs["numbers"][:, 0].copy()
        for _ in range(20):
            actions = play(obs, infos["action_mask"])
            assert np.array_equal(play((obs["map"], obs["numbers"]), infos["action_mask"]), actions)
            obs, *_, infos = vec.step(actions)
        assert (obs["numbers"][:, 0] > 2 * first).all()
        metrics = vec.simulator.read_metrics(np.arange(2))
        assert (metrics["attacks"] > 0).all()
        assert ((metrics["rank"] >= 1) & (metrics["rank"] <= 6)).all()
    vec.close()
