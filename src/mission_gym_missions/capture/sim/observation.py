"""The observation and the action mask of a row."""

from __future__ import annotations

import math

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.capture.sim.layout import (
    AGE_S,
    F_AGE,
    F_COS,
    F_INTEGRITY,
    F_NEAR,
    F_POSITION,
    F_SIN,
    FOE_FEATURES,
    G_CAPTURE,
    G_CONTESTED,
    G_STALL,
    G_TIME,
    HEADING_COS,
    HEADING_SIN,
    NEAR_M,
    NUM_ACTIONS,
    NUM_HEADINGS,
    O_ALTITUDE,
    O_COOLDOWN,
    O_COS,
    O_DISABLED,
    O_GOAL,
    O_GOAL_DISTANCE,
    O_GOAL_NEAR,
    O_INSIDE,
    O_INTEGRITY,
    O_RAYS,
    O_SIN,
    O_SPEED,
    O_X,
    O_Y,
    OWN_FEATURES,
    RAY_M,
    TAG,
    CaptureState,
    CaptureWorld,
    Record,
)
from mission_gym_missions.capture.sim.motion import ray_length, wall_length
from mission_gym_missions.capture.sim.sensors import find_target


@kernel
def write_vector(out: Array, far: int, near: int, dx: float, dy: float, size_m: float) -> float:
    """Write a vector at the scale of the arena and at the near scale; return its length."""
    distance = math.sqrt(dx * dx + dy * dy)
    out[far], out[far + 1] = dx / size_m, dy / size_m
    out[near], out[near + 1] = dx / (distance + NEAR_M), dy / (distance + NEAR_M)
    return distance


@kernel
def write_rays(world: CaptureWorld, unit: Record, kind: Record, out: Array) -> None:
    """Write the clearance in the eight compass directions; only the edge stops air units."""
    half_m = world.rules[0].half_m
    for k in range(NUM_HEADINGS):
        length = wall_length(half_m, unit.x, unit.y, HEADING_COS[k], HEADING_SIN[k], kind.radius)
        out[O_RAYS + k] = min(length / RAY_M, 1.0)
    if kind.air:
        return
    for j in range(world.obstacles.shape[0]):
        obstacle = world.obstacles[j]
        dx, dy = obstacle.x - unit.x, obstacle.y - unit.y
        reach = RAY_M + obstacle.bound + kind.radius
        if dx * dx + dy * dy >= reach * reach:
            continue
        for k in range(NUM_HEADINGS):
            if dx * HEADING_COS[k] + dy * HEADING_SIN[k] > 0.0:
                length = ray_length(obstacle, unit.x, unit.y, HEADING_COS[k], HEADING_SIN[k], kind.radius)
                if length < out[O_RAYS + k] * RAY_M:
                    out[O_RAYS + k] = length / RAY_M


@kernel
def write_attacker(world: CaptureWorld, state: CaptureState, i: int, a: int, out: Array) -> None:
    """Write the features of one attacker: itself, the zone and the defenders."""
    rules = world.rules[0]
    unit, kind, game = state.units[i, a], world.kinds[a], state.games[i]
    size_m = 2.0 * rules.half_m
    out[O_X], out[O_Y] = unit.x / rules.half_m, unit.y / rules.half_m
    out[O_COS], out[O_SIN] = unit.cos, unit.sin
    out[O_SPEED] = unit.speed / kind.max_speed
    out[O_INTEGRITY] = unit.integrity / kind.integrity
    out[O_COOLDOWN] = unit.cooldown / max(kind.cooldown, 1)
    out[O_ALTITUDE] = kind.altitude
    out[O_DISABLED] = 1.0 if unit.integrity <= 0.0 else 0.0
    dx, dy = game.objective_x - unit.x, game.objective_y - unit.y
    distance = write_vector(out, O_GOAL, O_GOAL_NEAR, dx, dy, size_m)
    out[O_GOAL_DISTANCE] = min(distance / size_m, 1.0)
    out[O_INSIDE] = 1.0 if distance <= rules.radius else 0.0
    write_rays(world, unit, kind, out)
    for d in range(state.minds.shape[1]):
        track = state.tracks[i, d]
        foe = out[OWN_FEATURES + d * FOE_FEATURES : OWN_FEATURES + (d + 1) * FOE_FEATURES]
        if track.age < 0 or rules.blind:
            foe[:] = 0.0
            foe[F_AGE] = 1.0
            continue
        write_vector(foe, F_POSITION, F_NEAR, track.x - unit.x, track.y - unit.y, size_m)
        foe[F_COS], foe[F_SIN], foe[F_INTEGRITY] = track.cos, track.sin, track.integrity
        foe[F_AGE] = min(track.age / (AGE_S * rules.hz), 1.0)


@kernel
def write_row(world: CaptureWorld, state: CaptureState, i: int, obs: Array, mask: Array) -> None:
    """Write the observation [F] and the mask [A * NUM_ACTIONS] of one row."""
    rules, game = world.rules[0], state.games[i]
    width = OWN_FEATURES + FOE_FEATURES * state.minds.shape[1]
    num_attackers = rules.num_attackers
    for a in range(num_attackers):
        write_attacker(world, state, i, a, obs[a * width : (a + 1) * width])
        legal = mask[a * NUM_ACTIONS : (a + 1) * NUM_ACTIONS]
        active = state.units[i, a].integrity > 0.0
        legal[:] = 1 if active else 0
        legal[0] = 1  # holding is always legal
        can_tag = active and state.units[i, a].cooldown == 0
        if not rules.blind:  # to a blind policy the mask would reveal the defenders
            can_tag = find_target(world, state, i, a) >= 0
        legal[TAG] = 1 if can_tag else 0
    last = obs[num_attackers * width :]
    last[G_TIME] = 1.0 - game.tick / rules.limit_ticks
    last[G_CAPTURE] = min(game.capture / rules.capture_ticks, 1.0)
    last[G_CONTESTED] = game.contested
    last[G_STALL] = min(game.stall / rules.stall_ticks, 1.0)
