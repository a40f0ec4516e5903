"""The planners do as well as the mission promises."""

import numpy as np
import pytest

from mission_gym.streams import suite_seeds
from mission_gym_missions.placement.baselines import find_clusters
from mission_gym_missions.placement.env import PlacementEnv, PlacementVectorEnv


def play(name, num_rows=64, **sizes):
    vec = PlacementVectorEnv(num_rows, **sizes)
    obs, infos = vec.reset(seed=suite_seeds("select", num_rows))
    returns, ended = np.zeros(num_rows), np.zeros(1, bool)
    while not ended.any():
        actions = vec.baselines[name](obs, infos["action_mask"])
        assert vec.action_space.contains(actions)
        obs, rewards, ended, _, infos = vec.step(actions)
        returns += rewards
    return returns


def test_greedy_is_good_and_exact_is_better():
    kmeans, greedy, ahead, exact = (play(name) for name in ("kmeans", "greedy", "lookahead", "exact"))
    assert (exact >= greedy - 1e-6).all()
    assert (exact >= kmeans - 1e-6).all()
    assert kmeans.mean() < greedy.mean() < ahead.mean() < exact.mean()
    assert 0.95 < greedy.mean() / exact.mean() < 0.98


@pytest.mark.parametrize("sizes", [(6, 6, 4), (2, 1, 2), (30, 12, 100)])
def test_every_size_can_be_planned(sizes):
    kwargs = dict(zip(("num_sites", "num_stations", "num_demand"), sizes, strict=True))
    for name in PlacementVectorEnv(1, **kwargs).baselines:
        assert np.isfinite(play(name, 3, **kwargs)).all()


def test_a_plan_goes_on_from_where_others_placed():
    env = PlacementEnv(6, 5)
    for name in env.baselines:
        obs, info = env.reset(seed=2)
        for site in (0, 3, 5):
            obs, _, _, _, info = env.step(site)
        for _ in range(2):
            obs, _, ended, _, info = env.step(env.baselines[name](obs, info))
        assert ended


def test_clusters_are_found_and_the_largest_comes_first():
    rng = np.random.default_rng(0)
    middles = np.array([[0.2, 0.2], [0.8, 0.3], [0.5, 0.9]])
    points = np.concatenate([middle + 0.03 * rng.standard_normal((20, 2)) for middle in middles])
    demand = np.repeat([0.2, 0.5, 0.3], 20) / 20
    found = find_clusters(points, demand, 3)
    assert found == pytest.approx(middles[[1, 2, 0]], abs=0.03)
    assert np.array_equal(found, find_clusters(points, demand, 3))
    assert find_clusters(points[:1].repeat(4, axis=0), np.full(4, 0.25), 3) == pytest.approx(
        points[[0, 0, 0]]
    )
