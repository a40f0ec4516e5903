"""Motion and the geometry it needs: a unit turns, accelerates, moves and slides along obstacles.

Obstacles are circles and rotated rectangles. Every test starts with their bounding circles.
"""

from __future__ import annotations

import math

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.capture.sim.layout import Record


@kernel
def mobility(unit: Record, kind: Record) -> float:
    """Return the share of speed and acceleration that a unit has left."""
    return 0.5 if unit.integrity <= 0.5 * kind.integrity else 1.0


@kernel
def turn(unit: Record, kind: Record) -> None:
    """Turn towards the wanted heading by at most the turn rate. Headings are (cos, sin)."""
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
    """Move one tick and return whether the unit has just hit something.

    check: whether an obstacle may be in reach, decided once per command.
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
    """Keep the unit inside the arena; return whether it touched the edge."""
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
    """Limit the speed to the top speed's component along a surface with this outward normal."""
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


@kernel
def length(dx: float, dy: float) -> float:
    """Return the length of a vector; several times faster than hypot, which guards against overflow."""
    return math.sqrt(dx * dx + dy * dy)


@kernel
def blocks(obstacle: Record, ax: float, ay: float, bx: float, by: float) -> bool:
    """Whether the obstacle lies on the segment from a to b."""
    dx, dy = bx - ax, by - ay
    ox, oy = obstacle.x - ax, obstacle.y - ay
    length2 = dx * dx + dy * dy
    along = min(max(ox * dx + oy * dy, 0.0), length2) / max(length2, 1e-12)
    gap_x, gap_y = ox - along * dx, oy - along * dy
    if gap_x * gap_x + gap_y * gap_y >= obstacle.bound * obstacle.bound:
        return False
    if obstacle.radius > 0.0:
        return True
    # In the rectangle's frame: the interval of the segment inside both slabs.
    px, py = -(ox * obstacle.cos + oy * obstacle.sin), ox * obstacle.sin - oy * obstacle.cos
    vx, vy = dx * obstacle.cos + dy * obstacle.sin, -dx * obstacle.sin + dy * obstacle.cos
    near, far = cut_slab(px, vx, obstacle.half_w, 0.0, 1.0)
    near, far = cut_slab(py, vy, obstacle.half_h, near, far)
    return near < far


@kernel
def cut_slab(p: float, v: float, half: float, near: float, far: float) -> tuple[float, float]:
    """Cut the interval [near, far] of t down to |p + t v| < half."""
    if abs(v) < 1e-12:
        if abs(p) >= half:
            return near, near - 1.0
        return near, far
    first, last = (-half - p) / v, (half - p) / v
    if first > last:
        first, last = last, first
    return max(near, first), min(far, last)


@kernel
def is_clear(obstacles: Array, ax: float, ay: float, bx: float, by: float) -> bool:
    """Whether no obstacle lies between a and b."""
    clear = True
    for k in range(obstacles.shape[0]):
        clear = clear and not blocks(obstacles[k], ax, ay, bx, by)
    return clear


@kernel
def contact(obstacle: Record, x: float, y: float, radius: float) -> tuple[float, float, float]:
    """Return a disc's depth inside the obstacle, and the outward normal: (depth, nx, ny). Depth 0: apart."""
    dx, dy = x - obstacle.x, y - obstacle.y
    reach = obstacle.bound + radius
    distance2 = dx * dx + dy * dy
    if distance2 >= reach * reach:
        return 0.0, 0.0, 0.0
    if obstacle.radius > 0.0:
        distance = math.sqrt(distance2)
        if distance < 1e-9:
            return reach, 1.0, 0.0
        return reach - distance, dx / distance, dy / distance
    px, py = dx * obstacle.cos + dy * obstacle.sin, -dx * obstacle.sin + dy * obstacle.cos
    cx = min(max(px, -obstacle.half_w), obstacle.half_w)
    cy = min(max(py, -obstacle.half_h), obstacle.half_h)
    gap_x, gap_y = px - cx, py - cy
    gap = math.sqrt(gap_x * gap_x + gap_y * gap_y)
    if gap >= radius:
        return 0.0, 0.0, 0.0
    if gap > 1e-9:
        depth, nx, ny = radius - gap, gap_x / gap, gap_y / gap
    elif obstacle.half_w - abs(px) < obstacle.half_h - abs(py):  # the centre is inside: use the nearest side
        depth, nx, ny = radius + obstacle.half_w - abs(px), math.copysign(1.0, px), 0.0
    else:
        depth, nx, ny = radius + obstacle.half_h - abs(py), 0.0, math.copysign(1.0, py)
    return depth, nx * obstacle.cos - ny * obstacle.sin, nx * obstacle.sin + ny * obstacle.cos


@kernel
def ray_length(obstacle: Record, x: float, y: float, cos: float, sin: float, radius: float) -> float:
    """Return how far a disc can move until it touches the obstacle; infinity if it never does."""
    dx, dy = obstacle.x - x, obstacle.y - y
    along = dx * cos + dy * sin
    reach = obstacle.bound + radius
    aside2 = dx * dx + dy * dy - along * along
    if along <= 0.0 or aside2 >= reach * reach:
        return math.inf
    if obstacle.radius > 0.0:
        return float(max(along - math.sqrt(reach * reach - aside2), 0.0))
    px, py = -(dx * obstacle.cos + dy * obstacle.sin), dx * obstacle.sin - dy * obstacle.cos
    vx, vy = cos * obstacle.cos + sin * obstacle.sin, -cos * obstacle.sin + sin * obstacle.cos
    near, far = cut_slab(px, vx, obstacle.half_w + radius, 0.0, math.inf)
    near, far = cut_slab(py, vy, obstacle.half_h + radius, near, far)
    return near if near < far else math.inf


@kernel
def wall_length(half_m: float, x: float, y: float, cos: float, sin: float, radius: float) -> float:
    """Return how far a disc can move until it touches the edge of the arena."""
    room = half_m - radius
    room_left = math.inf
    if abs(cos) > 1e-9:
        room_left = (math.copysign(room, cos) - x) / cos
    if abs(sin) > 1e-9:
        room_left = min(room_left, (math.copysign(room, sin) - y) / sin)
    return max(room_left, 0.0)
