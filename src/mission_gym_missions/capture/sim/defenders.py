"""How defenders decide: they patrol, guard or intercept; they sense, react, chase and forget."""

from __future__ import annotations

import math

from mission_gym.compiled import kernel
from mission_gym_missions.capture.sim.layout import (
    GUARD,
    INTERCEPT,
    PATROL,
    PATROL_POINTS,
    CaptureState,
    CaptureWorld,
    Record,
)
from mission_gym_missions.capture.sim.motion import length
from mission_gym_missions.capture.sim.sensors import in_cone, sensor_reach
from mission_gym_missions.rng import draw

ARRIVED_M = 3.0
LEAD_S = 2.0  # how far ahead an interceptor aims at most
SCAN_COS, SCAN_SIN = math.cos(math.radians(15)), math.sin(math.radians(15))  # per sensing
DETOUR_COS, DETOUR_SIN = math.cos(math.radians(70)), math.sin(math.radians(70))
DETOUR_S = 0.75


@kernel
def run_clocks(mind: Record) -> None:
    """Advance a defender's clocks by one tick."""
    mind.memory = max(mind.memory - 1, 0)
    mind.reaction = max(mind.reaction - 1, 0)
    mind.detour = max(mind.detour - 1, 0)
    if mind.memory == 0:
        mind.target = -1


@kernel
def think(world: CaptureWorld, state: CaptureState, i: int, d: int) -> None:
    """Sense, choose a target, and set the heading and throttle until the next sensing."""
    rules = world.rules[0]
    u = rules.num_attackers + d
    unit, mind, game = state.units[i, u], state.minds[i, d], state.games[i]
    if unit.integrity <= 0.0:
        return
    choose_target(world, state, i, d)
    if draw(game) < rules.random_share:
        angle = 2.0 * math.pi * draw(game)
        unit.want_cos, unit.want_sin, unit.throttle = math.cos(angle), math.sin(angle), 1.0
        return
    if mind.target >= 0 and mind.reaction == 0:
        chase(rules, unit, mind, world.kinds[u].max_speed)
    elif mind.mode == PATROL:
        point = state.patrols[i, d, mind.leg]
        if length(point.x - unit.x, point.y - unit.y) < ARRIVED_M:
            mind.leg = (mind.leg + 1) % PATROL_POINTS
            point = state.patrols[i, d, mind.leg]
        head_for(unit, point.x, point.y, 0.0)
    elif length(mind.post_x - unit.x, mind.post_y - unit.y) >= ARRIVED_M:
        head_for(unit, mind.post_x, mind.post_y, 0.0)
    else:  # at its post it scans
        unit.throttle = 0.0
        unit.want_cos = unit.cos * SCAN_COS - unit.sin * SCAN_SIN
        unit.want_sin = unit.sin * SCAN_COS + unit.cos * SCAN_SIN
    if unit.touching and mind.detour == 0:
        mind.detour = int(DETOUR_S * rules.hz)
        mind.detour_side = 1 if draw(game) < 0.5 else -1
    if mind.detour > 0 and unit.throttle > 0.0:
        cos, sin, side = unit.want_cos, unit.want_sin, DETOUR_SIN * mind.detour_side
        unit.want_cos = cos * DETOUR_COS - sin * side
        unit.want_sin = sin * DETOUR_COS + cos * side


@kernel
def choose_target(world: CaptureWorld, state: CaptureState, i: int, d: int) -> None:
    """Take the nearest sensed attacker as the target; a guard ignores those beyond its leash."""
    rules = world.rules[0]
    u = rules.num_attackers + d
    unit, mind, kind = state.units[i, u], state.minds[i, d], world.kinds[u]
    reach = sensor_reach(unit, kind)
    found, best2 = -1, math.inf
    for a in range(rules.num_attackers):
        foe = state.units[i, a]
        dx, dy = foe.x - unit.x, foe.y - unit.y
        distance2 = dx * dx + dy * dy
        if foe.integrity <= 0.0 or distance2 >= best2 or not state.sight[i, a, d]:
            continue
        if not in_cone(unit, dx, dy, reach, kind.sensor_cos):
            continue
        if mind.mode == GUARD and length(foe.x - mind.post_x, foe.y - mind.post_y) > rules.leash_m:
            continue
        found, best2 = a, distance2
    if found >= 0:
        foe = state.units[i, found]
        if mind.target < 0:
            mind.reaction = mind.delay
        mind.target, mind.memory = found, rules.memory_ticks
        mind.seen_x, mind.seen_y = foe.x, foe.y
        mind.seen_vx, mind.seen_vy = foe.cos * foe.speed, foe.sin * foe.speed
    elif mind.target >= 0 and state.units[i, mind.target].integrity <= 0.0:
        mind.target = -1


@kernel
def chase(rules: Record, unit: Record, mind: Record, max_speed: float) -> None:
    """Head for the target's last known position; an interceptor heads for its predicted one."""
    x, y = mind.seen_x, mind.seen_y
    if mind.mode == INTERCEPT:
        lead_s = min(length(x - unit.x, y - unit.y) / max_speed, LEAD_S)
        x, y = x + mind.seen_vx * lead_s, y + mind.seen_vy * lead_s
    head_for(unit, x, y, rules.standoff_m)


@kernel
def head_for(unit: Record, x: float, y: float, standoff_m: float) -> None:
    """Set the heading to a point, and stop at the standoff distance."""
    dx, dy = x - unit.x, y - unit.y
    distance = length(dx, dy)
    if distance > 1e-6:
        unit.want_cos, unit.want_sin = dx / distance, dy / distance
    unit.throttle = 1.0 if distance > standoff_m else 0.0
