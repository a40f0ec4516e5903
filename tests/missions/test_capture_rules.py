"""The zone, the outcomes, the reward and its terms, the mask and the observation."""

import math

import numpy as np
import pytest

from capture_scenes import DEF_1, EAST, UAV_A, UGV_A, UGV_B, WEST, play, put, scenario, scene, terms
from mission_gym_missions.capture.sim.layout import (
    F_AGE,
    FOE_FEATURES,
    NUM_ACTIONS,
    O_DISABLED,
    O_GOAL,
    O_GOAL_NEAR,
    O_INSIDE,
    O_RAYS,
    OUTCOMES,
    OWN_FEATURES,
    TERMS,
)
from mission_gym_missions.capture.simulator import CaptureSimulator


def clocks(sim):
    game = sim.state.games[0]
    return int(game["capture"]), int(game["zone"]), int(game["stall"])


def test_the_capture_clock_runs_while_an_active_unit_is_inside():
    sim = scene()
    put(sim, UGV_A, 14.9, 0)
    play(sim, steps=4)
    assert clocks(sim) == (20, 20, 0)
    put(sim, UGV_A, 15.1, 0)
    play(sim, steps=4)
    assert clocks(sim)[:2] == (20, 20)  # cumulative: it stands still, and keeps what it has
    put(sim, UGV_A, 14.9, 0)["integrity"] = 0.0
    play(sim)
    assert clocks(sim)[0] == 20


@pytest.mark.parametrize(("contested", "expected"), [(True, 0), (False, 5)])
def test_a_defender_inside_stops_the_clock_only_where_the_level_says_so(contested, expected):
    sim = scene(level__objective__contested=contested)
    put(sim, UGV_A, 0, 10)
    foe = put(sim, DEF_1, 0, -10, heading_deg=270)
    shown = play(sim)
    assert clocks(sim)[:2] == (expected, 5)
    assert shown.obs[0, -2] == float(contested)
    foe["integrity"] = 0.0
    play(sim)
    assert clocks(sim)[0] == expected + 5


def test_captured_at_the_very_tick():
    sim = scene(level__objective__capture_s=1.1)
    put(sim, UGV_A, 5, 0)
    assert not play(sim, steps=4).ended[0]
    shown = play(sim)
    assert shown.ended[0]
    assert sim.read_outcomes()[0] == "captured"
    assert sim.state.games["tick"][0] == 22
    assert terms(sim, shown)["win"] == 10.0


def test_all_disabled_ends_the_mission():
    sim = scene()
    sim.state.units["integrity"][0, :4] = 0.0
    shown = play(sim)
    assert sim.read_outcomes()[0] == "all_disabled"
    assert terms(sim, shown)["all_disabled"] == -2.0


def test_stalled_after_thirty_seconds_without_progress():
    sim = scene()
    shown = play(sim, steps=119)
    assert not shown.ended[0]
    assert shown.obs[0, -1] == pytest.approx(119 / 120)
    shown = play(sim)
    assert sim.read_outcomes()[0] == "stalled"
    assert terms(sim, shown)["stalled"] == -2.0


def test_one_metre_nearer_starts_the_stall_clock_again_and_less_does_not():
    sim = scene()
    for u in range(4):
        put(sim, u, -60, 10 * u)
    sim.state.games["best_m"][0] = 60.0
    play(sim, steps=40)
    assert clocks(sim)[2] == 200
    put(sim, UGV_A, -59.1, 0)
    play(sim)
    assert clocks(sim)[2] == 205
    put(sim, UGV_A, -59.0, 0)
    play(sim)
    assert clocks(sim)[2] == 4  # better at the first of the five ticks


def test_never_stalled_while_inside():
    sim = scene(level__objective__capture_s=100.0)
    put(sim, UGV_A, 5, 0)
    assert not play(sim, steps=200).ended[0]
    assert clocks(sim)[2] == 0


def test_timeout_at_the_limit():
    sim = scene(level__time__limit_s=3.0)
    shown = play(sim, steps=12)
    assert sim.read_outcomes()[0] == "timeout"
    assert terms(sim, shown)["timeout"] == -2.0
    assert shown.obs[0, -4] == 0.0


def test_time_capture_and_first_entry():
    sim = scene()
    for u in range(1, 4):
        put(sim, u, -60, 10 * u)
    put(sim, UGV_A, 5, 0)
    sim.state.games["potential"][0] = -sum(math.hypot(60, 10 * u) - 15 for u in range(1, 4))
    given = terms(sim, play(sim))
    assert given == {
        "capture": pytest.approx(0.125, abs=1e-7),
        "first_entry": 0.5,
        "time": pytest.approx(-0.0005, abs=1e-7),
    }
    assert "first_entry" not in terms(sim, play(sim))


def test_approach_pays_metres_to_the_edge_of_the_zone_and_takes_them_back():
    sim = scene()
    for u in range(1, 4):
        put(sim, u, 95, 95)
    unit = put(sim, UGV_A, -50, 0, speed=8.0)
    sim.state.games["potential"][0] = -(35 + 3 * (math.hypot(95, 95) - 15))
    assert terms(sim, play(sim, EAST))["approach"] == pytest.approx(2.0 / 100, abs=1e-7)
    unit["x"] = -52.0
    unit["speed"] = unit["throttle"] = 0.0
    assert terms(sim, play(sim))["approach"] == pytest.approx(-4.0 / 100, abs=1e-7)
    unit["x"] = 3.0  # inside there is nothing to gain
    assert terms(sim, play(sim))["approach"] == pytest.approx(37.0 / 100, abs=1e-7)
    unit["x"] = 0.0
    assert "approach" not in terms(sim, play(sim))


def test_survivors_pay_where_switched_on():
    sim = scene(level__objective__capture_s=0.25, reward__survivors__enabled=True)
    put(sim, UGV_A, 5, 0)
    sim.state.units["integrity"][0, UAV_A] = 0.0
    assert terms(sim, play(sim))["survivors"] == 5 * 0.75


def test_terms_sum_to_the_reward_exactly_in_any_order_and_start_anew():
    rows, rng = np.arange(32), np.random.default_rng(0)
    sim = CaptureSimulator(scenario("hard"), 32)
    sim.seed(rows, rows)
    obs, mask = sim.make_outputs()
    sim.begin(rows, obs, mask)
    ended = 0
    for _ in range(300):
        legal = mask.reshape(32, 4, NUM_ACTIONS)
        shown = sim.step((rng.random(legal.shape) * legal).argmax(axis=2))
        mask = shown.mask
        named = shown.terms
        assert set(named) == set(TERMS) - {"survivors"}
        for order in (list(named), list(named)[::-1], sorted(named)):
            assert (sum(named[name] for name in order) == shown.rewards).all()
        over = np.flatnonzero(shown.ended)
        if over.size:
            sim.begin(over, shown.obs, shown.mask)
            games = sim.state.games[over]
            for name in ("tick", "capture", "zone", "stall", "entered", "integrity_lost", "collisions"):
                assert not games[name].any()
            ended += over.size
    assert ended > 5


def test_everything_refers_to_the_drawn_zone():
    sim = scene(level__objective__jitter_m=10.0)
    game = sim.state.games[0]
    x, y = float(game["objective_x"]), float(game["objective_y"])
    assert 0.5 < math.hypot(x, y) <= 10.0
    units = sim.state.units[0, :4]
    short = np.hypot(units["x"] - x, units["y"] - y) - 15
    assert game["potential"] == pytest.approx(-short.sum())
    patrol = sim.state.patrols[0, 0]
    middle = np.array([patrol["x"].mean(), patrol["y"].mean()])
    assert np.hypot(*(middle - [x, y])) < 10
    put(sim, UGV_A, x + 14.9, y)
    put(sim, UGV_B, x - 15.1, y)
    rows = play(sim).obs[0, :-4].reshape(4, -1)
    assert rows[:2, O_INSIDE].tolist() == [1.0, 0.0]
    assert clocks(sim)[0] == 5
    assert rows[0, O_GOAL : O_GOAL + 2] == pytest.approx([-14.9 / 200, 0.0], abs=1e-6)
    assert rows[0, O_GOAL_NEAR] == pytest.approx(-14.9 / 29.9)


def test_the_observation_shows_rays_and_what_was_sensed():
    sim = scene(level__obstacles=[{"position_m": [20.0, 50.0], "radius_m": 4.0}])
    put(sim, UGV_A, 0, 50, heading_deg=180)
    put(sim, DEF_1, -30, 50, heading_deg=90)
    shown = play(sim)
    own, foes = np.split(shown.obs[0, :-4].reshape(4, -1)[UGV_A], [OWN_FEATURES])
    assert own[O_RAYS] == pytest.approx((20 - 4 - 2.5) / 40)
    assert own[O_RAYS + 1] == 1.0
    assert own[O_DISABLED] == 0.0
    foes = foes.reshape(2, FOE_FEATURES)
    assert foes[0] == pytest.approx([-0.15, 0, -30 / 45, 0, *foes[0, 4:6], 1.0, 0.0], abs=1e-6)
    assert ((shown.obs >= -1) & (shown.obs <= 1)).all()


def test_a_defender_that_was_never_sensed_is_all_zero_with_age_one():
    sim = scene()
    sim.state.tracks["age"][:] = -1
    for u in range(4):
        put(sim, u, -95, -95 + 5 * u)
    foes = play(sim).obs[0, :-4].reshape(4, -1)[:, OWN_FEATURES:].reshape(4, 2, FOE_FEATURES)
    assert (foes[..., F_AGE] == 1.0).all()
    assert not foes[..., :F_AGE].any()


def test_blind_shows_no_defender_and_plays_the_same_game():
    rows = np.arange(16)
    shows = []
    for blind in (False, True):
        sim = CaptureSimulator(scenario(), 16, blind=blind)
        sim.seed(rows, rows)
        sim.begin(rows, *sim.make_outputs())
        shows.append([sim.step(np.full((16, 4), WEST)) for _ in range(20)][-1])
    sighted, blind_one = (show.obs[:, :-4].reshape(16, 4, -1) for show in shows)
    assert (sighted[..., :OWN_FEATURES] == blind_one[..., :OWN_FEATURES]).all()
    assert (shows[0].rewards == shows[1].rewards).all()
    assert (shows[1].mask.reshape(16, 4, NUM_ACTIONS)[..., -1] == 1).all()  # charged, and it knows no more
    foes = blind_one[..., OWN_FEATURES:].reshape(16, 4, 2, FOE_FEATURES)
    assert not foes[..., :F_AGE].any()
    assert (foes[..., F_AGE] == 1).all()


def test_outcomes_are_declared_in_the_order_of_the_simulator():
    assert OUTCOMES == ("captured", "all_disabled", "stalled", "timeout")
