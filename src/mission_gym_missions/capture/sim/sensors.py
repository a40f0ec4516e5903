"""Who senses whom, and who can tag whom: range, cone, line of sight, damage and cooldown, for both sides.

Lines of sight are computed once per sensing. Air units see, and are seen, over obstacles.
"""

from __future__ import annotations

import math

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.capture.sim.layout import (
    T_DISABLED,
    T_INTEGRITY,
    T_LOST,
    T_TAGGED,
    CaptureState,
    CaptureWorld,
    Record,
)
from mission_gym_missions.capture.sim.motion import is_clear, length
from mission_gym_missions.rng import draw


@kernel
def sensor_reach(unit: Record, kind: Record) -> float:
    """Return the range of a unit's sensor; it halves at 30 % of the integrity."""
    return float(kind.sensor_m * (0.5 if unit.integrity <= 0.3 * kind.integrity else 1.0))


@kernel
def in_cone(unit: Record, dx: float, dy: float, reach: float, cone_cos: float) -> bool:
    """Whether a point at offset (dx, dy) is within reach and inside the cone around the unit's heading."""
    distance2 = dx * dx + dy * dy
    if distance2 > reach * reach:
        return False
    return bool(unit.cos * dx + unit.sin * dy >= cone_cos * math.sqrt(distance2))


@kernel
def update_sight(world: CaptureWorld, state: CaptureState, i: int) -> None:
    """Update which attackers and defenders have a clear line of sight."""
    rules = world.rules[0]
    units = state.units[i]
    num_attackers = rules.num_attackers
    for a in range(num_attackers):
        one, kind = units[a], world.kinds[a]
        for d in range(state.minds.shape[1]):
            other, other_kind = units[num_attackers + d], world.kinds[num_attackers + d]
            clear = True
            if one.integrity > 0.0 and not kind.air and not other_kind.air:
                dx, dy = other.x - one.x, other.y - one.y
                reach = max(max(kind.sensor_m, other_kind.sensor_m), rules.tag_m)
                if dx * dx + dy * dy > reach * reach:
                    clear = False
                else:
                    clear = is_clear(world.obstacles, one.x, one.y, other.x, other.y)
            state.sight[i, a, d] = 1 if clear else 0


@kernel
def update_tracks(world: CaptureWorld, state: CaptureState, i: int) -> None:
    """Update the fleet's track of each defender; all attackers share it."""
    rules = world.rules[0]
    units = state.units[i]
    for d in range(state.minds.shape[1]):
        foe, track = units[rules.num_attackers + d], state.tracks[i, d]
        for a in range(rules.num_attackers):
            unit, kind = units[a], world.kinds[a]
            if unit.integrity <= 0.0 or not state.sight[i, a, d]:
                continue
            dx, dy = foe.x - unit.x, foe.y - unit.y
            if in_cone(unit, dx, dy, sensor_reach(unit, kind), kind.sensor_cos):
                if track.age < 0 or track.age > rules.sense_ticks:  # not sensed last time
                    state.games[i].detections += 1
                track.x, track.y, track.cos, track.sin = foe.x, foe.y, foe.cos, foe.sin
                track.integrity = foe.integrity / world.kinds[rules.num_attackers + d].integrity
                track.age = 0
                break


@kernel
def tag_damage(rules: Record, damage: float, distance: float) -> float:
    """Return the damage of a tag: full when near, then falling linearly to the far share at maximum range."""
    fall = (distance - rules.tag_full_m) / max(rules.tag_m - rules.tag_full_m, 1e-9)
    share = 1.0 - (1.0 - rules.tag_far_share) * min(max(fall, 0.0), 1.0)
    return float(damage * share)


@kernel
def find_target(world: CaptureWorld, state: CaptureState, i: int, a: int) -> int:
    """Return the nearest active defender that attacker `a` can tag now, or -1; for masks and for tags."""
    rules = world.rules[0]
    unit = state.units[i, a]
    if unit.integrity <= 0.0 or unit.cooldown > 0:
        return -1
    best, best2 = -1, math.inf
    for d in range(state.minds.shape[1]):
        foe = state.units[i, rules.num_attackers + d]
        dx, dy = foe.x - unit.x, foe.y - unit.y
        distance2 = dx * dx + dy * dy
        if foe.integrity <= 0.0 or distance2 >= best2 or not state.sight[i, a, d]:
            continue
        if in_cone(unit, dx, dy, rules.tag_m, rules.tag_cos):
            best, best2 = d, distance2
    return best


@kernel
def attack(world: CaptureWorld, state: CaptureState, i: int, a: int, terms: Array) -> None:
    """Attacker `a` tags its target; without one it keeps its charge."""
    rules = world.rules[0]
    d = find_target(world, state, i, a)
    if d < 0:
        return
    unit, foe = state.units[i, a], state.units[i, rules.num_attackers + d]
    game = state.games[i]
    distance = length(foe.x - unit.x, foe.y - unit.y)
    damage = min(tag_damage(rules, world.kinds[a].damage, distance), foe.integrity)
    foe.integrity -= damage
    unit.cooldown = world.kinds[a].cooldown
    game.attacker_tags += 1
    game.attacker_hits += 1
    terms[T_TAGGED] += 1.0
    if foe.integrity <= 0.0:
        foe.speed = foe.throttle = 0.0
        terms[T_DISABLED] += 1.0


@kernel
def defend(world: CaptureWorld, state: CaptureState, i: int, d: int, terms: Array) -> None:
    """Defender `d` tags if its target seems to be in the cone, and hits if it really is."""
    rules = world.rules[0]
    mind, game = state.minds[i, d], state.games[i]
    u = rules.num_attackers + d
    unit, target = state.units[i, u], mind.target
    if target < 0 or unit.cooldown > 0 or mind.reaction > 0 or unit.integrity <= 0.0:
        return
    foe = state.units[i, target]
    dx, dy = foe.x - unit.x, foe.y - unit.y
    distance = length(dx, dy)
    if foe.integrity <= 0.0 or distance > rules.tag_m or not state.sight[i, target, d]:
        return
    # The sum of two uniform numbers has standard deviation aim_spread * sqrt(1/6) and needs no logarithm.
    error = (draw(game) + draw(game) - 1.0) * rules.aim_spread
    cos, sin = math.cos(error), math.sin(error)
    if not in_cone(unit, dx * cos - dy * sin, dx * sin + dy * cos, math.inf, rules.tag_cos):
        return
    unit.cooldown = world.kinds[u].cooldown
    game.defender_tags += 1
    if not in_cone(unit, dx, dy, math.inf, rules.tag_cos):
        return
    damage = min(tag_damage(rules, world.kinds[u].damage, distance), foe.integrity)
    foe.integrity -= damage
    game.defender_hits += 1
    game.integrity_lost += damage
    terms[T_INTEGRITY] += damage
    if foe.integrity <= 0.0:
        foe.speed = foe.throttle = 0.0
        terms[T_LOST] += 1.0
