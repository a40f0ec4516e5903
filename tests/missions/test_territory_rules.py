"""The rules: the compiled simulator against the plain-Python reference, and what single rules do."""

import numpy as np
import pytest

from mission_gym.errors import ConfigError
from mission_gym_bench.territory_plain import PlainGame
from mission_gym_missions.territory.rules import SHIPPED, load_mission
from mission_gym_missions.territory.sim.layout import AGENT, NATION, WATER
from mission_gym_missions.territory.simulator import TerritorySimulator

ROW = np.zeros(1, np.int64)
KEPT = [name for name in NATION.names if name != "character"]


def begin(mission, seed):
    simulator = TerritorySimulator(mission, 1)
    simulator.seed(ROW, np.array([seed]))
    obs, mask = simulator.make_outputs()
    simulator.begin(ROW, obs, mask)
    return simulator, mask


def assert_equal(simulator, plain):
    state = simulator.state
    assert state.cells[0].tolist() == plain.cells
    for p, nation in list(enumerate(plain.nations))[1:]:  # number 0 is nobody
        assert {name: int(state.nations[0, p][name]) for name in KEPT} == {
            name: getattr(nation, name) for name in KEPT
        }
        fronts = [[f.targets, f.neutrals, f.neutral_cost, f.enemy_cost] for f in nation.fronts]
        assert state.fronts[0, p].tolist() == fronts
    game = state.games[0]
    assert (game["step"], game["total"]) == (plain.step_number, plain.total)
    for name in ("conquered", "lost", "eliminations", "attacks"):
        assert game[name] == getattr(plain, name)
    assert simulator.read_outcomes()[0] == plain.outcome


@pytest.mark.parametrize(("size", "num_bots", "seed", "steps"), [(64, 5, 3, 45), (96, 30, 2**40 + 1, 12)])
def test_the_compiled_rules_are_those_of_the_reference(size, num_bots, seed, steps):
    mission = load_mission(size, num_bots, None)
    simulator, mask = begin(mission, seed)
    plain = PlainGame(mission)
    plain.reset(seed)
    assert_equal(simulator, plain)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        action = int((rng.random(mask.shape) * mask).argmax())
        shown = simulator.step(np.array([action]))
        mask = shown.mask
        assert plain.step(action) == shown.rewards[0]
        assert_equal(simulator, plain)


@pytest.mark.slow
def test_a_whole_game_is_that_of_the_reference():
    test_the_compiled_rules_are_those_of_the_reference(64, 5, 11, 200)


def test_an_attack_that_the_mask_allows_takes_land_and_others_take_nothing():
    mission = load_mission(64, 1, None)
    for seed in range(3):
        simulator, mask = begin(mission, seed)
        for _ in range(8):
            saved = simulator.get_state()
            for action in range(1, 13):
                simulator.set_state(saved)
                land = simulator.state.nations[0, AGENT]["land"]
                simulator.step(np.array([action]))
                taken = simulator.state.nations[0, AGENT]["taken"]
                assert (taken > 0) == bool(mask[0, action])
                assert simulator.state.nations[0, AGENT]["land"] >= land - 64
            simulator.set_state(saved)
            mask = simulator.step(np.array([int(mask[0].nonzero()[0][-1])])).mask


def test_maps_have_land_water_and_rock_and_no_two_are_alike():
    mission = load_mission(64, 20, None)
    cells = []
    for seed in range(6):
        simulator, _ = begin(mission, seed)
        grid = simulator.state.cells[0].reshape(66, 66)
        assert (grid[[0, -1]] == 255).all()
        assert (grid[:, [0, -1]] == 255).all()
        inner = grid[1:-1, 1:-1]
        shares = [(inner == WATER).mean(), (inner == 255).mean(), (inner < WATER).mean()]
        assert shares[2] > 0.5
        assert np.bincount(inner[inner < WATER])[1:].tolist() == [9] * 21
        cells.append(inner.tobytes())
    assert len(set(cells)) == 6


@pytest.mark.parametrize("seed", [5, 41, 110])
def test_the_agent_begins_where_most_can_be_won(seed):
    """Of maps in parts: what counts is what can be reached, and no other nation can come to more."""
    mission = load_mission(64, 5, None)
    simulator, _ = begin(mission, seed)
    plain = PlainGame(mission)
    plain.reset(seed)
    assert_equal(simulator, plain)
    assert plain.total < 0.8 * len(plain.land)
    assert plain.total == plain.reach(AGENT, set())
    assert plain.total >= max(plain.reach(p, set()) for p in range(2, 7))


def test_victory_elimination_and_timeout():
    mission = load_mission(64, 2, None)
    simulator, _ = begin(mission, 1)
    cells, nations = simulator.state.cells[0], simulator.state.nations[0]
    saved = simulator.get_state()
    cells[(cells == 2) | (cells == 3)] = 0
    nations["land"][2:] = 0
    simulator.step(ROW)
    assert simulator.read_outcomes()[0] == "victory"  # the last one
    simulator.set_state(saved)
    nations["land"][AGENT] = 0
    cells[cells == 1] = 0
    shown = simulator.step(ROW)
    assert (simulator.read_outcomes()[0], shown.terms["eliminated"][0]) == ("eliminated", -5.0)
    simulator.set_state(saved)
    simulator.state.games["step"] = mission.max_steps - 1
    shown = simulator.step(ROW)
    rank = simulator.read_metrics(ROW)["rank"][0]
    assert simulator.read_outcomes()[0] == "timeout"
    assert shown.terms["rank"][0] == 2 * (3 - rank) / 2
    simulator.set_state(saved)
    others = np.flatnonzero(cells == 0)[: 80 * simulator.state.games["total"][0] // 100]
    cells[others] = AGENT
    nations["land"][AGENT] += len(others)
    shown = simulator.step(ROW)
    assert (simulator.read_outcomes()[0], shown.terms["victory"][0]) == ("victory", 10.0)


def test_wrong_arguments_and_rules_are_told_at_once(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        SHIPPED.read_text().replace("ferry_cost: 4", "ferry_cost: -1").replace("cap: 100", "cup: 100")
    )
    with pytest.raises(ConfigError) as caught:
        load_mission(100, 0, own)
    told = str(caught.value)
    for text in ("size=100 is not a map size", "num_bots=0 is not", "ferry_cost=-1", "unknown key 'cup'"):
        assert text in told
