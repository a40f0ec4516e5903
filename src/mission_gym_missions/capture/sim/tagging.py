"""Tags: range, cone, sight, damage and cooldown, for both sides."""

from __future__ import annotations

import math

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.capture.sim.chance import draw
from mission_gym_missions.capture.sim.geometry import length
from mission_gym_missions.capture.sim.layout import (
    T_DISABLED,
    T_INTEGRITY,
    T_LOST,
    T_TAGGED,
    Record,
    State,
    World,
)
from mission_gym_missions.capture.sim.sensing import in_cone


@kernel
def tag_damage(rules: Record, damage: float, distance: float) -> float:
    """Full damage near, falling linearly to the far share at the end of the range."""
    fall = (distance - rules.tag_full_m) / max(rules.tag_m - rules.tag_full_m, 1e-9)
    share = 1.0 - (1.0 - rules.tag_far_share) * min(max(fall, 0.0), 1.0)
    return float(damage * share)


@kernel
def find_target(world: World, state: State, i: int, a: int) -> int:
    """The nearest active defender that attacker `a` can tag now, or -1; a mask and a tag both ask here."""
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
def attack(world: World, state: State, i: int, a: int, terms: Array) -> None:
    """Attacker `a` tags what it can; without a target nothing is spent."""
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
def defend(world: World, state: State, i: int, d: int, terms: Array) -> None:
    """Defender `d` tags its target where it believes it in the cone; it hits where that is true."""
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
    # The sum of two uniform numbers: a bell of deviation aim_spread * sqrt(1/6), without logarithms.
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
