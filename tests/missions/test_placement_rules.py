"""The numbers of the placement mission: hand-made cities, an independent formula, and what a file may say."""

import itertools

import numpy as np
import pytest

from mission_gym.errors import ConfigError
from mission_gym_missions.placement.baselines import make_baselines
from mission_gym_missions.placement.env import PlacementEnv
from mission_gym_missions.placement.kernels import clear_rows
from mission_gym_missions.placement.rules import SHIPPED, load_mission
from mission_gym_missions.placement.simulator import PlacementSimulator, make_cells
from mission_gym_missions.rng import draw_uniform

ROW = np.zeros(1, np.int64)


def make_simulator(num_sites=6, num_stations=3, num_demand=9, num_rows=1, instance="random"):
    simulator = PlacementSimulator(
        load_mission(num_sites, num_stations, num_demand, instance, None), num_rows
    )
    rows = np.arange(num_rows)
    simulator.seed(rows, rows)
    simulator.begin(rows, *simulator.make_outputs())
    return simulator


def measure(simulator, stations, row=0):
    """Coverage, ridership and minutes of waiting, straight from the rules."""
    rules = simulator.mission.rules
    points, demand = simulator.city.points * rules.city_m, simulator.state.demand[row]
    sites = simulator.state.sites[row][list(stations)] * rules.city_m
    distances = np.linalg.norm(points[:, None] - sites, axis=2)
    nearest, least = distances.argmin(axis=1), distances.min(axis=1)
    riders = demand * np.exp(-((least / rules.ride_m) ** 2))
    loads = np.bincount(nearest, riders, len(sites))
    return demand[least <= rules.walk_m].sum(), riders.sum(), (loads * rules.queue_min * loads).sum()


def worth(simulator, stations, row=0):
    terms = simulator.mission.rules.terms
    weights = (terms.coverage, terms.ridership, terms.waiting)
    return sum(w * v for w, v in zip(weights, measure(simulator, stations, row), strict=True))


def test_the_terms_are_those_of_the_rules():
    simulator = make_simulator(num_rows=5)
    for row in range(5):
        assert simulator.state.demand[row].sum() == pytest.approx(1.0)
    for count in range(1, 4):
        step = simulator.step(np.full(5, count + 1))
        for row in range(5):
            stations = simulator.state.order[row, :count]
            assert simulator.state.values[row] == pytest.approx(measure(simulator, stations, row))
            assert step.rewards[row] == sum(values[row] for values in step.terms.values())
    worths = [worth(simulator, (2, 3, 4), row) for row in range(5)]
    assert simulator.state.values @ simulator.city.weights == pytest.approx(worths)


def test_two_points_and_two_stations_by_hand():
    simulator = make_simulator(2, 2, 2)
    simulator.state.sites[0] = simulator.city.points
    simulator.state.demand[0] = [0.75, 0.25]
    clear_rows(simulator.city, simulator.state, ROW)
    far_m = 2000 * np.linalg.norm(simulator.city.points[1] - simulator.city.points[0])
    assert far_m > 600
    ride = float(np.exp(-((far_m / 800) ** 2)))
    terms = simulator.step(np.array([0])).terms
    load = 0.75 + 0.25 * ride
    assert [*terms.values()] == pytest.approx([0.75, 1.5 * load, -0.25 * 20 * load**2])
    terms = simulator.step(np.array([1])).terms
    queue = 0.75**2 + 0.25**2
    assert simulator.state.values[0] == pytest.approx([1.0, 1.0, 20 * queue])
    assert [*terms.values()] == pytest.approx([0.25, 1.5 * (1 - load), -0.25 * 20 * (queue - load**2)])


def test_the_order_of_the_stations_does_not_matter():
    plans = []
    for order in itertools.permutations((0, 2, 5)):
        simulator = make_simulator()
        for site in order:
            simulator.step(np.array([site]))
        plans.append(simulator.state.values[0].copy())
    assert all(np.array_equal(plan, plans[0]) for plan in plans)


def test_every_term_matters():
    """The best plan for two of the terms is clearly worse than the best for all three."""
    losses = np.zeros(3)
    simulator = make_simulator(10, 3, 25, num_rows=20)
    for row in range(20):
        values = np.array([measure(simulator, plan, row) for plan in itertools.combinations(range(10), 3)])
        worths = values @ simulator.city.weights
        for term in range(3):
            others = np.where(np.arange(3) == term, 0.0, simulator.city.weights)
            losses[term] += 1.0 - worths[(values @ others).argmax()] / worths.max()
    assert (losses / 20 > 0.03).all()


def test_the_observation_tells_gains_and_looks_one_station_ahead():
    env = PlacementEnv(6, 3, 9)
    obs, _ = env.reset(seed=3)
    env.step(4)
    obs, _, _, _, info = env.step(1)
    sites = obs[: 6 * 9].reshape(6, 9)
    free = np.flatnonzero(info["action_mask"])
    assert free.tolist() == [0, 2, 3, 5]
    simulator = env.simulator
    now = {site: worth(simulator, (4, 1, site)) for site in free}
    before = np.array(measure(simulator, (4, 1)))
    for site in free:
        gains = (np.array(measure(simulator, (4, 1, site))) - before) * simulator.city.weights
        assert sites[site, 2:5] == pytest.approx(gains, abs=1e-6)
        expected = max(1 - (max(now.values()) - now[site]) / 0.1, 0)
        assert sites[site, 5:7] == pytest.approx([expected, expected], abs=1e-5)  # the last one: no next
    assert not sites[[1, 4], 2:7].any()
    assert sites[4, 7] == pytest.approx(simulator.state.load[0, 4])
    assert obs[-4:] == pytest.approx([1 / 3, *before[:2], before[2] / 20], abs=1e-6)
    env.reset(seed=3)
    obs, _, _, _, _ = env.step(4)
    ahead = {
        one: max(worth(simulator, (4, one, two)) for two in range(6) if two not in (4, one))
        for one in (0, 1, 2, 3, 5)
    }
    for site, value in ahead.items():
        expected = max(1 - (max(ahead.values()) - value) / 0.1, 0)
        assert obs[site * 9 + 6] == pytest.approx(expected, abs=1e-5)


def test_exact_is_the_best_of_all_plans_also_from_the_middle():
    env = PlacementEnv(7, 3, 9)
    for seed in range(5):
        obs, info = env.reset(seed=seed)
        for _ in range(3):
            stations = [int(site) for site in env.simulator.state.order[0] if site >= 0]
            rest = [site for site in range(7) if site not in stations]
            plans = itertools.combinations(rest, 3 - len(stations))
            best = max(worth(env.simulator, (*stations, *plan)) for plan in plans)
            obs, _, ended, _, info = env.step(env.baselines["exact"](obs, info))
        assert ended
        assert worth(env.simulator, env.simulator.state.order[0]) == pytest.approx(best, abs=1e-6)


def test_a_cell_for_each_site():
    cells = make_cells(7)
    areas = (cells[:, 1] - cells[:, 0]) * (cells[:, 3] - cells[:, 2])
    assert areas.sum() == pytest.approx(1.0)
    simulator = make_simulator(7, 2, 4, num_rows=50)
    x, y = simulator.state.sites[..., 0], simulator.state.sites[..., 1]
    assert ((x >= cells[:, 0]) & (x <= cells[:, 1]) & (y >= cells[:, 2]) & (y <= cells[:, 3])).all()


def test_chances_are_a_function_of_seed_episode_and_index():
    seeds, episodes = np.array([3, 3, 9, 2**62]), np.array([0, 1, 0, 5])
    drawn = draw_uniform(seeds, episodes, 400)
    assert np.array_equal(drawn[2:3, :100], draw_uniform(seeds[2:3], episodes[2:3], 100))
    assert ((drawn >= 0) & (drawn < 1)).all()
    assert len(np.unique(drawn)) == drawn.size
    assert drawn.mean() == pytest.approx(0.5, abs=0.03)


def test_all_wrong_sizes_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        PlacementEnv(1, 0, 2.5, "fixd")
    assert caught.value.problems == [
        "num_sites=1 is not an integer of at least 2; correct it [num_sites]",
        "num_stations=0 is not an integer of at least 1; correct it [num_stations]",
        "num_demand=2.5 is not an integer of at least 2; correct it [num_demand]",
        "instance='fixd' is unknown (did you mean 'fixed'?); use random (a city per episode) "
        "or fixed [instance]",
    ]
    with pytest.raises(ConfigError, match="num_stations=5 is above num_sites=4; a site takes one station"):
        PlacementEnv(4, 5)


def test_a_wrong_file_is_told_with_its_lines_beside_wrong_sizes(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(SHIPPED.read_text().replace("walk_m: 600", "walk_m: -1").replace("ride_m", "rid_m"))
    with pytest.raises(ConfigError) as caught:
        PlacementEnv(num_sites=0, rules_file=path)
    text = str(caught.value)
    assert f"walk_m=-1: input should be greater than 0; correct it [{path}, line 11]" in text
    assert "unknown key 'rid_m' (did you mean 'ride_m'?) in the file" in text
    assert "'ride_m' is missing in the file" in text
    assert "num_sites=0 is not an integer" in text
    with pytest.raises(ConfigError, match="the file can't be read"):
        PlacementEnv(rules_file=tmp_path / "none.yaml")


def test_exact_is_not_offered_for_too_many_plans():
    assert set(make_baselines(load_mission(60, 10, 16, "random", None))) == {"greedy", "lookahead", "kmeans"}
