"""Lines, circles and rotated rectangles: sight, contact and clearance. Bounding circles come first."""

from __future__ import annotations

import math

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.capture.sim.layout import Record


@kernel
def length(dx: float, dy: float) -> float:
    """The length of a vector; several times faster than hypot, which guards against overflow."""
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
    # In the rectangle's own frame: the interval of the segment inside both slabs.
    px, py = -(ox * obstacle.cos + oy * obstacle.sin), ox * obstacle.sin - oy * obstacle.cos
    vx, vy = dx * obstacle.cos + dy * obstacle.sin, -dx * obstacle.sin + dy * obstacle.cos
    near, far = cut_slab(px, vx, obstacle.half_w, 0.0, 1.0)
    near, far = cut_slab(py, vy, obstacle.half_h, near, far)
    return near < far


@kernel
def cut_slab(p: float, v: float, half: float, near: float, far: float) -> tuple[float, float]:
    """Cut the interval [near, far] of t to where |p + t v| < half."""
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
    """Whether no obstacle stands between a and b."""
    clear = True
    for k in range(obstacles.shape[0]):
        clear = clear and not blocks(obstacles[k], ax, ay, bx, by)
    return clear


@kernel
def contact(obstacle: Record, x: float, y: float, radius: float) -> tuple[float, float, float]:
    """How deep a disc is in the obstacle, with the normal that leads out: (depth, nx, ny); depth 0: not."""
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
    elif obstacle.half_w - abs(px) < obstacle.half_h - abs(py):  # the centre is inside: the nearest side
        depth, nx, ny = radius + obstacle.half_w - abs(px), math.copysign(1.0, px), 0.0
    else:
        depth, nx, ny = radius + obstacle.half_h - abs(py), 0.0, math.copysign(1.0, py)
    return depth, nx * obstacle.cos - ny * obstacle.sin, nx * obstacle.sin + ny * obstacle.cos


@kernel
def ray_length(obstacle: Record, x: float, y: float, cos: float, sin: float, radius: float) -> float:
    """How far a disc can go in a direction before it touches the obstacle; infinite if it never does."""
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
    """How far a disc can go in a direction before it touches the edge of the arena."""
    room = half_m - radius
    room_left = math.inf
    if abs(cos) > 1e-9:
        room_left = (math.copysign(room, cos) - x) / cos
    if abs(sin) > 1e-9:
        room_left = min(room_left, (math.copysign(room, sin) - y) / sin)
    return max(room_left, 0.0)
