"""Motion, turning, collisions and sight, with numbers worked out by hand (20 Hz, five ticks a command)."""

import math

import pytest

from capture_scenes import EAST, NORTH, ROW, UAV_A, UGV_A, UGV_B, WEST, play, put, scene
from mission_gym_missions.capture.scenario import Obstacle

WALL = {"position_m": [10.0, 0.0], "size_m": [2.0, 20.0]}


def test_a_unit_accelerates_by_its_limit_and_no_faster_than_its_top_speed():
    sim = scene()
    unit = put(sim, UGV_A, -50, 30)
    play(sim, EAST)
    assert unit["speed"] == pytest.approx(1.5)  # 6 m/s2 for 0.25 s
    assert unit["x"] == pytest.approx(-50 + 0.3 * (1 + 2 + 3 + 4 + 5) / 20)
    play(sim, EAST, steps=20)
    assert unit["speed"] == 8.0
    play(sim)  # hold: brakes as fast as it accelerates
    assert unit["speed"] == pytest.approx(6.5)


def test_a_unit_turns_by_its_limit_and_then_exactly_to_the_heading():
    sim = scene()
    unit = put(sim, UGV_A, -50, 0)
    play(sim, NORTH)
    assert math.degrees(math.atan2(unit["sin"], unit["cos"])) == pytest.approx(30)  # 120 degrees/s
    play(sim, NORTH, steps=3)
    assert (unit["cos"], unit["sin"]) == (0.0, 1.0)


def test_half_the_integrity_halves_speed_and_acceleration():
    sim = scene()
    unit = put(sim, UGV_A, -50, 0)
    unit["integrity"] = 50.0
    play(sim, EAST)
    assert unit["speed"] == pytest.approx(0.75)
    play(sim, EAST, steps=20)
    assert unit["speed"] == 4.0


@pytest.mark.parametrize(
    ("obstacle", "edge"),
    [({"position_m": [0.0, 50.0], "radius_m": 4.0}, -4.0), (WALL | {"position_m": [0.0, 50.0]}, -1.0)],
)
def test_a_ground_unit_is_stopped_by_an_obstacle_and_an_air_unit_is_not(obstacle, edge):
    sim = scene(level__obstacles=[Obstacle(**obstacle).model_dump()])
    ground, air = put(sim, UGV_A, -12, 50), put(sim, UAV_A, -12, 50)
    play(sim, EAST, 0, EAST, steps=24)
    assert ground["x"] == pytest.approx(edge - 2.5)
    assert ground["speed"] <= 0.3
    assert air["x"] > 20
    assert sim.read_metrics(ROW)["collisions"][0] == 1


def test_a_unit_slides_along_a_wall_that_it_meets_at_an_angle():
    sim = scene(
        level__obstacles=[Obstacle(**(WALL | {"position_m": [0.0, 50.0], "angle_deg": 45.0})).model_dump()]
    )
    unit = put(sim, UGV_A, -10, 50)
    play(sim, EAST, steps=30)
    assert unit["x"] > 10
    assert abs(unit["y"] - 50) > 5


def test_the_edge_of_the_arena_stops_every_unit():
    sim = scene()
    ground, air = put(sim, UGV_A, 90, 0), put(sim, UAV_A, 90, 10)
    play(sim, EAST, 0, EAST, steps=20)
    assert (ground["x"], air["x"]) == (97.5, 99.5)


def test_distances_are_added_up_per_unit():
    sim = scene()
    unit = put(sim, UGV_A, -50, 30, speed=8.0)
    start = unit["distance_m"]
    play(sim, EAST, steps=4)
    assert unit["distance_m"] - start == pytest.approx(8.0)
    assert sim.read_metrics(ROW)["distance_m_0_UGV_A"][0] == unit["distance_m"]


def test_ground_units_do_not_see_through_obstacles_and_air_units_see_over_them():
    sim = scene(level__obstacles=[WALL])
    put(sim, UGV_A, 0, 0)  # behind the wall
    put(sim, UGV_B, 0, 25)  # past its end: the line to (20, 0) leaves the wall at y = 11.25
    put(sim, UAV_A, 0, 0)
    put(sim, 4, 20, 0, heading_deg=90)
    play(sim)
    assert sim.state.sight[0, :3, 0].tolist() == [0, 1, 1]


def test_a_sensor_has_a_range_a_field_of_view_and_suffers_from_damage():
    sim = scene()
    for u in range(1, 4):
        put(sim, u, -95, -95)
    unit, track = put(sim, UGV_A, -40, 0), sim.state.tracks[0, 0]
    track["age"] = -1
    put(sim, 4, 6, 0)  # 46 m ahead, the range is 45
    play(sim)
    assert track["age"] == -1
    put(sim, 4, 4, 0)
    play(sim)
    assert (track["age"], track["x"]) == (0, 4.0)
    put(sim, UGV_A, -40, 0, heading_deg=180)  # outside its 200 degrees
    play(sim, steps=2)
    assert track["age"] == 10
    unit = put(sim, UGV_A, -40, 0)
    unit["integrity"] = 30.0  # senses 22.5 m
    play(sim)
    assert track["age"] == 15
    assert sim.read_metrics(ROW)["detections"][0] >= 1


def test_going_back_and_forth_turns_by_the_left_when_both_ways_are_equal():
    sim = scene()
    unit = put(sim, UGV_A, -50, 0)
    play(sim, WEST)
    assert unit["sin"] > 0
