"""The capture simulator as Python sees it, and the constants it takes from a scenario.

Constants are converted here: seconds to ticks, degrees to radians or (cos, sin).
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym_missions.capture.scenario import Level, Obstacle, Scenario, UnitKind, load_scenario
from mission_gym_missions.capture.sim.layout import (
    KIND,
    MODES,
    NUM_ACTIONS,
    OBSTACLE,
    OUTCOMES,
    RULES,
    TERMS,
    CaptureState,
    CaptureWorld,
    make_state,
    num_features,
)
from mission_gym_missions.capture.sim.rows import begin_rows, step_rows
from mission_gym_missions.simulator import ThreadedSimulator, check_range

_COUNTS = (
    "integrity_lost", "collisions", "detections", "attacker_tags", "attacker_hits", "defender_tags",
    "defender_hits",
)  # fmt: skip
_MEANING = "0 (hold), 1 to 8 (headings) or 9 (tag) for each unit"


class CaptureSimulator(ThreadedSimulator):
    """N games of one scenario. blind: the fleet observes nothing of the defenders."""

    begin_rows, step_rows = staticmethod(begin_rows), staticmethod(step_rows)
    outcomes, terms, kept = OUTCOMES, TERMS, CaptureState._fields
    rows_per_thread, shares_per_thread = 64, 16

    def __init__(
        self, scenario: Scenario, num_rows: int, *, threads: int | None = None, blind: bool = False
    ) -> None:
        self.scenario = scenario
        self.num_attackers = len(scenario.level.attackers.units)
        num_defenders = len(scenario.level.defenders.units)
        state = make_state(num_rows, self.num_attackers, num_defenders)
        shapes = [(name, array.shape, str(array.dtype)) for name, array in state._asdict().items()]
        super().__init__(
            num_rows,
            spaces.Box(-1.0, 1.0, (num_features(self.num_attackers, num_defenders),), np.float32),
            spaces.MultiDiscrete(np.full(self.num_attackers, NUM_ACTIONS)),
            hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
        )
        hidden = [name for name, term in scenario.reward.items() if not term.enabled]
        self._start(make_world(scenario, blind), state, threads, hidden)

    def check_actions(self, actions: Array) -> Array:
        return check_range(actions, (self.num_rows, self.num_attackers), NUM_ACTIONS, _MEANING)

    def read_metrics(self, rows: Array) -> dict[str, Array]:
        games, units = self.state.games[rows], self.state.units[rows, : self.num_attackers]
        hz = float(self.world.rules["hz"][0])
        metrics = {
            "capture_s": games["capture"] / hz,
            "zone_s": games["zone"] / hz,
            "units_alive": (units["integrity"] > 0).sum(axis=1),
        }
        metrics |= {name: games[name] for name in _COUNTS}
        for a, name in enumerate(self.scenario.level.attackers.units):
            metrics[f"distance_m_{a}_{name}"] = units["distance_m"][:, a]
        return {name: values.astype(np.float64) for name, values in metrics.items()}


def make_world(scenario: Scenario, blind: bool = False) -> CaptureWorld:
    """Build the constants of a scenario."""
    level = scenario.level
    hz = level.time.physics_hz
    names = [*level.attackers.units, *level.defenders.units]
    terms = [scenario.reward[name] for name in TERMS]
    return CaptureWorld(
        rules=_make_rules(level, blind),
        kinds=np.array([_make_kind(scenario.units[name], hz) for name in names], KIND),
        obstacles=np.array([_make_obstacle(item) for item in level.obstacles], OBSTACLE),
        sides=np.radians(np.array(level.attackers.sides_deg, np.float64)),
        modes=np.array([MODES.index(mode) for mode in level.defenders.modes], np.int64),
        weights=np.array([term.weight if term.enabled else 0.0 for term in terms]),
    )


def _make_rules(level: Level, blind: bool) -> Array:
    time, zone, fleet, posts, tag = level.time, level.objective, level.attackers, level.defenders, level.tag
    hz = time.physics_hz
    values = {
        "num_attackers": len(fleet.units),
        "command_ticks": time.ticks_per_command,
        "sense_ticks": time.ticks_per_sensing,
        "limit_ticks": _ticks(time.limit_s, hz),
        "stall_ticks": _ticks(time.stall_s, hz),
        "capture_ticks": _ticks(zone.capture_s, hz),
        "contested": zone.contested,
        "memory_ticks": _ticks(posts.memory_s, hz),
        "reaction_ticks": round(posts.reaction_max_s * hz),
        "blind": blind,
        "hz": hz,
        "dt": 1.0 / hz,
        "half_m": level.arena_m / 2,
        "stall_m": time.stall_progress_m,
        "objective_x": zone.position_m[0],
        "objective_y": zone.position_m[1],
        "objective_jitter": zone.jitter_m,
        "radius": zone.radius_m,
        "spawn_m": fleet.distance_m,
        "spawn_fan": math.radians(fleet.fan_deg),
        "spawn_jitter": fleet.jitter_m,
        "post_m": posts.post_distance_m,
        "post_turn": math.radians(posts.post_turn_deg),
        "post_spread": math.radians(posts.post_spread_deg),
        "post_jitter": posts.jitter_m,
        "patrol_m": posts.patrol_radius_m,
        "patrol_jitter": posts.patrol_jitter_m,
        "leash_m": posts.leash_m,
        "standoff_m": posts.standoff_m,
        "random_share": posts.random_action_share,
        "aim_spread": math.radians(posts.aim_jitter_deg) * math.sqrt(6.0),
        "tag_m": tag.range_m,
        "tag_full_m": tag.full_range_m,
        "tag_far_share": tag.far_share,
        "tag_cos": math.cos(math.radians(tag.half_angle_deg)),
    }
    return _fill(RULES, values)[None]


def _make_kind(unit: UnitKind, hz: int) -> Array:
    turn = min(math.radians(unit.turn_rate_deg_s) / hz, math.pi)
    # Rounding must not hide a point exactly behind a unit that senses all around.
    all_around = unit.sensor_fov_deg == 360
    values = {
        "air": unit.altitude > 0,
        "cooldown": round(unit.tag_cooldown_s * hz),
        "altitude": unit.altitude,
        "max_speed": unit.max_speed_m_s,
        "speed_step": unit.acceleration_m_s2 / hz,
        "turn_cos": math.cos(turn),
        "turn_sin": math.sin(turn),
        "radius": unit.radius_m,
        "integrity": unit.integrity,
        "damage": unit.tag_damage,
        "sensor_m": unit.sensor_range_m,
        "sensor_cos": -2.0 if all_around else math.cos(math.radians(unit.sensor_fov_deg / 2)),
    }
    return _fill(KIND, values)


def _make_obstacle(item: Obstacle) -> Array:
    angle = math.radians(item.angle_deg)
    width, height = item.size_m or (0.0, 0.0)
    x, y = item.position_m
    values = {
        "x": x,
        "y": y,
        "radius": item.radius_m or 0.0,
        "bound": item.radius_m or math.hypot(width, height) / 2,
        "half_w": width / 2,
        "half_h": height / 2,
        "cos": math.cos(angle),
        "sin": math.sin(angle),
    }
    return _fill(OBSTACLE, values)


def _fill(dtype: np.dtype[np.void], values: dict[str, float]) -> Array:
    """Return one element of a structured dtype; fields without a value are zero."""
    made = np.zeros((), dtype)
    for name, value in values.items():
        made[name] = value
    return made


def _ticks(seconds: float, hz: int) -> int:
    return max(round(seconds * hz), 1)


def compile_kernels() -> None:
    """Compile the simulator, or load it from numba's cache on disk.

    Creating the first environment would do the same. A program can call this in a thread next to its other
    start-up work: it takes about 15 s once per installation and machine, then half a second.
    """
    CaptureSimulator(load_scenario(), 1).warm_up()


is_compiling = CaptureSimulator.is_compiling
