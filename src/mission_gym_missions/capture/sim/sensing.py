"""Who sees whom. Sight is worked out once per sensing; air units see, and are seen, over obstacles."""

from __future__ import annotations

import math

from mission_gym.compiled import kernel
from mission_gym_missions.capture.sim.geometry import is_clear
from mission_gym_missions.capture.sim.layout import Record, State, World


@kernel
def sensor_reach(unit: Record, kind: Record) -> float:
    """The range of a unit's sensor, half of it when little integrity is left."""
    return float(kind.sensor_m * (0.5 if unit.integrity <= 0.3 * kind.integrity else 1.0))


@kernel
def in_cone(unit: Record, dx: float, dy: float, reach: float, cone_cos: float) -> bool:
    """Whether the point (dx, dy) away is within reach and within the cone around the unit's heading."""
    distance2 = dx * dx + dy * dy
    if distance2 > reach * reach:
        return False
    return bool(unit.cos * dx + unit.sin * dy >= cone_cos * math.sqrt(distance2))


@kernel
def update_sight(world: World, state: State, i: int) -> None:
    """Work out between which attackers and defenders nothing stands."""
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
def update_tracks(world: World, state: State, i: int) -> None:
    """Note what the fleet senses of each defender; attackers share it."""
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
                if track.age < 0 or track.age > rules.sense_ticks:  # not sensed the last time
                    state.games[i].detections += 1
                track.x, track.y, track.cos, track.sin = foe.x, foe.y, foe.cos, foe.sin
                track.integrity = foe.integrity / world.kinds[rules.num_attackers + d].integrity
                track.age = 0
                break
