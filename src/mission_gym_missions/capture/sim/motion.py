"""How a unit moves in one tick: turn, accelerate, go, and slide along what it meets."""

from __future__ import annotations

import math

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.capture.sim.geometry import contact
from mission_gym_missions.capture.sim.layout import Record


@kernel
def mobility(unit: Record, kind: Record) -> float:
    """The share of speed and acceleration that is left."""
    return 0.5 if unit.integrity <= 0.5 * kind.integrity else 1.0


@kernel
def turn(unit: Record, kind: Record) -> None:
    """Turn towards the wanted heading, at most by the turn rate; the headings are (cos, sin)."""
    ahead = unit.cos * unit.want_cos + unit.sin * unit.want_sin
    left = unit.cos * unit.want_sin - unit.sin * unit.want_cos
    if ahead >= kind.turn_cos:
        unit.cos, unit.sin = unit.want_cos, unit.want_sin
        return
    step = kind.turn_sin if left >= 0.0 else -kind.turn_sin
    cos, sin = unit.cos, unit.sin
    unit.cos = cos * kind.turn_cos - sin * step
    unit.sin = sin * kind.turn_cos + cos * step


@kernel
def move(unit: Record, kind: Record, dt: float, half_m: float, obstacles: Array, check: bool) -> bool:
    """Move one tick and return whether the unit has just run into something.

    check: whether an obstacle may be in reach; decided once per command.
    """
    share = mobility(unit, kind)
    turn(unit, kind)
    wanted = unit.throttle * kind.max_speed * share
    step = kind.speed_step * share
    unit.speed = min(max(wanted, unit.speed - step), unit.speed + step)
    if unit.speed == 0.0:
        return False
    old_x, old_y = unit.x, unit.y
    travel = unit.speed * dt
    unit.x += unit.cos * travel
    unit.y += unit.sin * travel
    touched = stay_inside(unit, kind, half_m)
    if check:
        for k in range(obstacles.shape[0]):
            depth, nx, ny = contact(obstacles[k], unit.x, unit.y, kind.radius)
            if depth > 0.0:
                unit.x += depth * nx
                unit.y += depth * ny
                slide(unit, kind, nx, ny)
                touched = True
        touched = stay_inside(unit, kind, half_m) or touched
    if touched:
        dx, dy = unit.x - old_x, unit.y - old_y
        travel = math.sqrt(dx * dx + dy * dy)
    unit.distance_m += travel
    began = touched and unit.touching == 0
    unit.touching = 1 if touched else 0
    return began


@kernel
def stay_inside(unit: Record, kind: Record, half_m: float) -> bool:
    """Keep the unit inside the arena; return whether it met the edge."""
    room = half_m - kind.radius
    met = False
    if abs(unit.x) > room:
        unit.x = math.copysign(room, unit.x)
        slide(unit, kind, -math.copysign(1.0, unit.x), 0.0)
        met = True
    if abs(unit.y) > room:
        unit.y = math.copysign(room, unit.y)
        slide(unit, kind, 0.0, -math.copysign(1.0, unit.y))
        met = True
    return met


@kernel
def slide(unit: Record, kind: Record, nx: float, ny: float) -> None:
    """Slow down to the share of the top speed that goes along the surface with this outward normal."""
    into = -(unit.cos * nx + unit.sin * ny)
    if into > 0.0:
        unit.speed = min(unit.speed, kind.max_speed * math.sqrt(max(1.0 - into * into, 0.0)))


@kernel
def can_touch(unit: Record, kind: Record, obstacles: Array, travel_m: float) -> bool:
    """Whether an obstacle is within `travel_m` of the unit's edge."""
    if kind.air:
        return False
    for k in range(obstacles.shape[0]):
        dx, dy = obstacles[k].x - unit.x, obstacles[k].y - unit.y
        reach = obstacles[k].bound + kind.radius + travel_m
        if dx * dx + dy * dy < reach * reach:
            return True
    return False
