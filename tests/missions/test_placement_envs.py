"""The placement environments: the hard mask, fixed instances and the worth of a plan.

The rest is in test_contract.py.
"""

import numpy as np
import pytest

from mission_gym.errors import UsageError
from mission_gym_missions.placement.env import PlacementEnv, PlacementVectorEnv


def draw_legal(mask, rng):
    return (rng.random(mask.shape) * mask).argmax(axis=1)


def test_the_return_is_the_worth_of_the_plan():
    vec, rng = PlacementVectorEnv(8), np.random.default_rng(0)
    _, infos = vec.reset(seed=5)
    returns = np.zeros(8)
    for step in range(1, 5):
        _, rewards, ended, _, infos = vec.step(draw_legal(infos["action_mask"], rng))
        returns += rewards
        assert ended.all() == (step == 4)
    final = infos["final_info"]
    metrics = final["episode_metrics"]
    worth = metrics["coverage"] + 1.5 * metrics["ridership"] - 0.25 * metrics["waiting_min"]
    assert worth == pytest.approx(returns)
    assert ((final["outcome"] == "covered") == (metrics["coverage"] >= 0.85)).all()


def test_a_fixed_instance_is_the_same_for_every_seed_and_episode():
    fixed = PlacementVectorEnv(3, instance="fixed")
    first, _ = fixed.reset(seed=5)
    assert len(np.unique([*first, *fixed.reset()[0], *fixed.reset(seed=1)[0]], axis=0)) == 1


def test_an_illegal_action_is_refused_with_the_rule():
    env = PlacementEnv()
    _, info = env.reset(seed=0)
    assert info["action_mask"].all()
    _, _, _, _, info = env.step(7)
    assert np.flatnonzero(info["action_mask"] == 0).tolist() == [7]
    before = env.get_state()
    with pytest.raises(UsageError, match=r"action 7 is illegal: the site already has a station; use a site"):
        env.step(7)
    with pytest.raises(UsageError, match="action 20 does not exist; use a site from 0 to 19"):
        env.step(20)
    with pytest.raises(UsageError, match=r"takes integers from 0 to 19 of shape \(1,\)"):
        env.step(1.5)
    assert np.array_equal(env.get_state()["order"], before["order"])
    vec = PlacementVectorEnv(2)
    vec.reset(seed=0)
    vec.step(np.array([1, 2]))
    with pytest.raises(UsageError, match="action 2 is illegal"):
        vec.step(np.array([0, 2]))


def test_samples_of_the_action_space_are_legal():
    env = PlacementEnv(5, 5)
    for seed in range(20):
        env.reset(seed=seed)
        placed = []
        for _ in range(5):
            placed.append(int(env.action_space.sample()))
            env.step(placed[-1])
        assert sorted(placed) == [0, 1, 2, 3, 4]
    only = np.array([0, 0, 1, 0, 0], np.int8)
    assert env.action_space.sample(mask=only) == 2


def test_a_restored_environment_samples_legal_actions():
    one, other = PlacementEnv(), PlacementEnv()
    one.reset(seed=1)
    for action in (3, 9):
        *_, info = one.step(action)
    other.set_state(one.get_state())
    assert other.action_space.free.tolist() == info["action_mask"].tolist()


@pytest.mark.parametrize("steps", [pytest.param(100_000, marks=pytest.mark.slow), 4_000])
def test_masked_play_never_breaks_a_rule(steps):
    vec = PlacementVectorEnv(500, num_sites=8, num_stations=7)
    _, infos = vec.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(steps // 500):
        _, _, _, _, infos = vec.step(draw_legal(infos["action_mask"], rng))
