"""Scenes with known answers: an empty arena, a zone at the middle, units where a test puts them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mission_gym_missions.capture.scenario import Scenario, load_scenario
from mission_gym_missions.capture.sim.layout import FIRST_HEADING, HOLD
from mission_gym_missions.capture.simulator import CaptureSimulator
from mission_gym_missions.simulator import SimStep

EAST, NORTH, WEST, SOUTH = (FIRST_HEADING + k for k in (0, 2, 4, 6))
UGV_A, UGV_B, UAV_A, UAV_B, DEF_1, DEF_2 = range(6)
ROW = np.zeros(1, np.int64)


def scenario(level: str = "normal", **changes: Any) -> Scenario:
    """A shipped level with changes: `level__objective__capture_s=5`."""
    values = load_scenario(level).model_dump()
    for path, value in changes.items():
        *above, last = path.split("__")
        part = values
        for key in above:
            part = part[key]
        part[last] = value
    return Scenario.model_validate(values)


def scene(**changes: Any) -> CaptureSimulator:
    """One game: no obstacles, the zone at (0, 0), the defenders disabled in a corner, nothing by chance."""
    quiet: dict[str, Any] = {
        "level__obstacles": [],
        "level__objective__jitter_m": 0.0,
        "level__defenders__random_action_share": 0.0,
        "level__defenders__aim_jitter_deg": 0.0,
        "level__defenders__reaction_max_s": 0.0,
        "units__DEF_UGV__integrity": 150.0,
        "units__DEF_UGV__tag_damage": 35.0,
        "units__DEF_UGV__sensor_range_m": 50.0,
    }
    sim = CaptureSimulator(scenario(**(quiet | changes)), 1)
    sim.seed(np.zeros(1, np.int64), np.zeros(1, np.int64))
    obs, mask = sim.make_outputs()
    sim.begin(np.zeros(1, np.int64), obs, mask)
    sim.state.sight[:] = 1
    for u in (DEF_1, DEF_2):
        put(sim, u, 90, 90)
        sim.state.units["integrity"][0, u] = 0.0
    return sim


def put(
    sim: CaptureSimulator, u: int, x: float, y: float, heading_deg: float = 0.0, speed: float = 0.0
) -> Any:
    """Put a whole, charged unit somewhere and return its record."""
    unit = sim.state.units[0, u]
    unit["x"], unit["y"] = x, y
    unit["cos"], unit["sin"] = math.cos(math.radians(heading_deg)), math.sin(math.radians(heading_deg))
    unit["want_cos"], unit["want_sin"] = unit["cos"], unit["sin"]
    unit["speed"] = unit["throttle"] = speed
    unit["integrity"] = sim.world.kinds["integrity"][u]
    unit["cooldown"] = unit["touching"] = 0
    if u >= sim.num_attackers:
        mind = sim.state.minds[0, u - sim.num_attackers]
        mind["post_x"], mind["post_y"], mind["mode"] = x, y, 1  # a guard at its post
        mind["target"], mind["memory"], mind["reaction"] = -1, 0, 0
    return unit


def play(sim: CaptureSimulator, *actions: int, steps: int = 1) -> SimStep:
    """Play the same actions (hold for units not named) for some steps; return the last step."""
    row = np.array([[*actions, *[HOLD] * (sim.num_attackers - len(actions))]], np.int64)
    for _ in range(steps):
        shown = sim.step(row)
    return shown


def terms(sim: CaptureSimulator, shown: SimStep) -> dict[str, float]:
    """The weighted terms of a step that are not zero."""
    return {name: float(values[0]) for name, values in shown.terms.items() if values[0] != 0.0}
