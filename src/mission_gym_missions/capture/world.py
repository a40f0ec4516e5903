"""From a checked scenario to the constants of the simulator: seconds to ticks, degrees to (cos, sin)."""

from __future__ import annotations

import math

import numpy as np

from mission_gym.data import Array
from mission_gym_missions.capture.scenario import Level, Obstacle, Scenario, UnitKind
from mission_gym_missions.capture.sim.layout import KIND, MODES, OBSTACLE, RULES, TERMS, World


def make_world(scenario: Scenario, blind: bool = False) -> World:
    """Build the constants. blind: the fleet is shown nothing of the defenders."""
    level = scenario.level
    hz = level.time.physics_hz
    names = [*level.attackers.units, *level.defenders.units]
    terms = [scenario.reward[name] for name in TERMS]
    return World(
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
    rules = np.zeros(1, RULES)
    for name, value in values.items():
        rules[name] = value
    return rules


def _make_kind(unit: UnitKind, hz: int) -> Array:
    turn = min(math.radians(unit.turn_rate_deg_s) / hz, math.pi)
    kind = np.zeros((), KIND)
    kind["air"] = unit.altitude > 0
    kind["cooldown"] = round(unit.tag_cooldown_s * hz)
    kind["altitude"] = unit.altitude
    kind["max_speed"] = unit.max_speed_m_s
    kind["speed_step"] = unit.acceleration_m_s2 / hz
    kind["turn_cos"], kind["turn_sin"] = math.cos(turn), math.sin(turn)
    kind["radius"] = unit.radius_m
    kind["integrity"] = unit.integrity
    kind["damage"] = unit.tag_damage
    kind["sensor_m"] = unit.sensor_range_m
    # A sensor all around must not lose what is exactly behind to rounding.
    all_around = unit.sensor_fov_deg == 360
    kind["sensor_cos"] = -2.0 if all_around else math.cos(math.radians(unit.sensor_fov_deg / 2))
    return kind


def _make_obstacle(item: Obstacle) -> Array:
    angle = math.radians(item.angle_deg)
    width, height = item.size_m or (0.0, 0.0)
    made = np.zeros((), OBSTACLE)
    made["x"], made["y"] = item.position_m
    made["radius"] = item.radius_m or 0.0
    made["bound"] = item.radius_m or math.hypot(width, height) / 2
    made["half_w"], made["half_h"] = width / 2, height / 2
    made["cos"], made["sin"] = math.cos(angle), math.sin(angle)
    return made


def _ticks(seconds: float, hz: int) -> int:
    return max(round(seconds * hz), 1)
