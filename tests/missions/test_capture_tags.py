"""Tags of both sides: geometry, damage, cooldown, and the defenders' clocks."""

import numpy as np
import pytest

from capture_scenes import DEF_1, DEF_2, EAST, ROW, UGV_A, play, put, scenario, scene, terms
from mission_gym_missions.capture.sim.layout import NUM_ACTIONS, TAG
from mission_gym_missions.capture.simulator import CaptureSimulator


@pytest.mark.parametrize(("distance", "damage"), [(5, 25.0), (8, 25.0), (14, 15.0), (20, 5.0)])
def test_damage_is_full_near_and_falls_to_a_fifth(distance, damage):
    sim = scene()
    put(sim, UGV_A, -40, 0)
    foe = put(sim, DEF_1, -40 + distance, 0, heading_deg=90)
    foe["cooldown"] = 1000
    play(sim, TAG)
    assert foe["integrity"] == pytest.approx(150 - damage)


@pytest.mark.parametrize(
    ("x", "y", "legal"), [(20.0, 0.0, 1), (20.1, 0.0, 0), (10.0, 5.7, 1), (10.0, 5.9, 0), (-5.0, 0.0, 0)]
)
def test_a_tag_is_legal_in_range_and_in_the_cone(x, y, legal):
    sim = scene()
    unit = put(sim, UGV_A, -40, 0)
    foe = put(sim, DEF_1, -40 + x, y, heading_deg=90)
    foe["cooldown"] = 1000
    sim.state.minds["post_x"][0, 0], sim.state.minds["post_y"][0, 0] = foe["x"], foe["y"]
    mask = play(sim).mask[0].reshape(4, NUM_ACTIONS)
    assert mask[UGV_A, TAG] == legal
    play(sim, TAG)
    assert (unit["cooldown"] > 0) == bool(legal)


def test_a_tag_needs_sight_and_an_active_target():
    sim = scene(level__obstacles=[{"position_m": [-35.0, 0.0], "radius_m": 2.0}])
    put(sim, UGV_A, -40, 0)
    foe = put(sim, DEF_1, -30, 0, heading_deg=90)
    foe["cooldown"] = 1000
    assert play(sim).mask[0, TAG] == 0
    clear = scene()
    put(clear, UGV_A, -40, 0)
    put(clear, DEF_1, -30, 0)["integrity"] = 0.0
    assert play(clear).mask[0, TAG] == 0


def test_the_tagger_charges_for_three_seconds_and_keeps_its_motion():
    sim = scene()
    unit = put(sim, UGV_A, -40, 0)
    foe = put(sim, DEF_1, -32, 0, heading_deg=90)
    foe["cooldown"] = 1000
    play(sim, EAST)
    throttle = unit["throttle"]
    play(sim, TAG)
    assert unit["throttle"] == throttle == 1.0
    put(sim, UGV_A, -40, 0)["cooldown"] = 55  # what is left after one command
    masks = []
    for _ in range(11):
        foe["x"], foe["y"], foe["cooldown"] = -32, 0, 1000
        masks.append(int(play(sim).mask[0, TAG]))
    assert masks == [0] * 10 + [1]


def test_a_disabled_defender_is_counted_once_and_rewarded():
    sim = scene()
    put(sim, UGV_A, -40, 0)
    foe = put(sim, DEF_1, -35, 0, heading_deg=90)
    foe["integrity"], foe["cooldown"] = 20.0, 1000
    given = terms(sim, play(sim, TAG))
    assert given["defender_disabled"] == 2.0
    assert given["defender_tagged"] == pytest.approx(0.2, abs=1e-7)
    assert foe["integrity"] == 0.0
    assert sim.read_metrics(ROW)["attacker_hits"][0] == 1
    assert "defender_disabled" not in terms(sim, play(sim))


def test_a_defender_tags_what_it_sees_and_a_lost_unit_costs():
    sim = scene()
    unit = put(sim, UGV_A, -40, 0)
    put(sim, DEF_1, -34, 0, heading_deg=180)
    given = terms(sim, play(sim))
    assert unit["integrity"] == 65.0
    assert given["integrity"] == pytest.approx(-35 * 0.005, abs=1e-7)
    assert "unit_lost" not in given
    unit["integrity"] = 10.0
    sim.state.units["cooldown"][0, DEF_1] = 0
    given = terms(sim, play(sim))
    assert given["unit_lost"] == -0.5
    assert given["integrity"] == pytest.approx(-10 * 0.005, abs=1e-7)
    metrics = sim.read_metrics(ROW)
    assert (metrics["defender_hits"][0], metrics["integrity_lost"][0]) == (2, 45.0)
    assert play(sim).mask[0, :NUM_ACTIONS].tolist() == [1] + [0] * 9  # a disabled unit can only hold


def test_a_defender_waits_for_its_reaction_and_recharges_in_seconds():
    sim = scene()
    put(sim, UGV_A, -40, 0)["integrity"] = 100.0
    put(sim, DEF_1, -34, 0, heading_deg=180)
    sim.state.minds["delay"][0, 0] = 9
    shots = []
    for _ in range(30):
        play(sim)
        shots.append(int(sim.read_metrics(ROW)["defender_tags"][0]))
    # Seen at tick 5, reacts at tick 14, and again 60 ticks later: in the commands that hold ticks 14 and 74.
    assert [step for step, count in enumerate(shots) if count > (shots[step - 1] if step else 0)] == [
        2,
        14,
        26,
    ]


def test_a_guard_minds_its_leash_and_forgets_after_four_seconds():
    sim = scene()
    put(sim, UGV_A, -40, 0)
    foe, mind = put(sim, DEF_1, -10, 0, heading_deg=180), sim.state.minds[0, 0]
    play(sim)
    assert mind["target"] == UGV_A
    put(sim, UGV_A, -90, 0)
    play(sim, steps=15)
    assert mind["target"] == UGV_A  # 3.75 s later
    play(sim)
    assert mind["target"] == -1
    put(sim, UGV_A, -46, 0)  # 36 m from the post
    foe["x"], foe["cos"], foe["sin"] = -10, -1.0, 0.0
    play(sim)
    assert mind["target"] == -1


@pytest.mark.parametrize("ticks", [1, 2, 10])
def test_defenders_do_not_depend_on_the_action_repeat(ticks):
    """Ten seconds of holding still: every clock, draw and move of the defenders is the same."""
    rows = np.arange(8)

    def after_ten_seconds(command_ticks):
        sim = CaptureSimulator(scenario(level__time__ticks_per_command=command_ticks), 8)
        sim.seed(rows, rows)
        sim.begin(rows, *sim.make_outputs())
        for u, x in enumerate((-25, -20, 20, 25)):
            sim.state.units["x"][:, u], sim.state.units["y"][:, u] = x, 3 * u
        for _ in range(200 // command_ticks):
            sim.step(np.zeros((8, 4), np.int64))
        return sim.state

    one, other = after_ten_seconds(5), after_ten_seconds(ticks)
    assert one.games["defender_tags"].sum() > 5
    assert one.units[:, DEF_1:].tobytes() == other.units[:, DEF_1:].tobytes()
    assert one.minds.tobytes() == other.minds.tobytes()
    assert one.games["random"].tolist() == other.games["random"].tolist()


def test_modes_posts_and_delays_are_drawn_per_episode():
    sim = CaptureSimulator(scenario(), 64)
    rows = np.arange(64)
    sim.seed(rows, rows)
    sim.begin(rows, *sim.make_outputs())
    minds = sim.state.minds
    assert set(minds["mode"].ravel().tolist()) == {0, 1, 2}
    assert minds["delay"].min() == 0
    assert minds["delay"].max() == 10
    games, posts = sim.state.games, sim.state.units[:, DEF_2]
    away = np.hypot(posts["x"] - games["objective_x"], posts["y"] - games["objective_y"])
    level = sim.scenario.level
    assert abs(np.median(away) - level.defenders.post_distance_m) < 4
    fleet = sim.state.units[:, :4]
    sides = np.degrees(np.arctan2(fleet["y"].mean(axis=1), fleet["x"].mean(axis=1)))
    assert len(set(np.round(sides / 45) % 8)) == len(level.attackers.sides_deg)
