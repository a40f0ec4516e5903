"""Whether everything of a level stands where it can: the zone and the attackers, wherever they are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mission_gym.config.plain_yaml import Key

if TYPE_CHECKING:
    from mission_gym_missions.capture.scenario import Level, Obstacle, UnitKind


def spawn_points(level: Level, side_deg: float) -> list[tuple[float, float]]:
    """Where the attackers begin on one side, before the jitter."""
    count, points = len(level.attackers.units), []
    x, y = level.objective.position_m
    for index in range(count):
        share = 2.0 * index / (count - 1) - 1.0 if count > 1 else 0.0
        angle = math.radians(side_deg + share * level.attackers.fan_deg)
        points.append(
            (
                x + level.attackers.distance_m * math.cos(angle),
                y + level.attackers.distance_m * math.sin(angle),
            )
        )
    return points


def placing_problems(level: Level, units: Mapping[str, UnitKind]) -> list[tuple[Key, str]]:
    """What is wrong with the places of a level whose values are sound; each with the key to point at."""
    half, zone, fleet = level.arena_m / 2, level.objective, level.attackers
    found: list[tuple[Key, str]] = []
    reach = max(abs(value) for value in zone.position_m) + zone.jitter_m + zone.radius_m
    if reach > half:
        found.append(
            (
                ("objective", "position_m"),
                f"the zone reaches {reach:g} m from the middle (position, jitter and radius), outside the "
                f"arena of +-{half:g} m; move it or make it smaller",
            )
        )
    kinds = [units[name] for name in fleet.units]
    found += _overlaps(level, kinds)
    furthest, outside = half, ""
    for side in fleet.sides_deg:
        for name, kind, (x, y) in zip(fleet.units, kinds, spawn_points(level, side), strict=True):
            room = kind.radius_m + fleet.jitter_m
            where = f"{name} of side {side:g} begins at ({x:.1f}, {y:.1f}) +-{fleet.jitter_m:g} m"
            if max(abs(x), abs(y)) + room > furthest:
                furthest = max(abs(x), abs(y)) + room
                outside = f"{where}, outside the arena of +-{half:g} m; move the spawn"
            for number, obstacle in enumerate(level.obstacles):
                if kind.altitude == 0 and _gap(obstacle, x, y) < room:
                    found.append((("obstacles", number), f"{where}, in obstacle {number}; move one of them"))
    if outside:
        found.append((("attackers", "distance_m"), outside))
    return found


def _overlaps(level: Level, kinds: list[UnitKind]) -> list[tuple[Key, str]]:
    """Pairs of units of one altitude band that the jitter can bring onto each other."""
    found: list[tuple[Key, str]] = []
    fleet = level.attackers
    points = spawn_points(level, 0.0)  # every side has the same fan
    for i, one in enumerate(kinds):
        for j in range(i + 1, len(kinds)):
            other = kinds[j]
            needed = one.radius_m + other.radius_m + 2 * fleet.jitter_m
            distance = math.dist(points[i], points[j])
            if (one.altitude > 0) == (other.altitude > 0) and distance < needed:
                found.append(
                    (
                        ("attackers", "fan_deg"),
                        f"the spawns of {fleet.units[i]} and {fleet.units[j]} overlap: {distance:.1f} m "
                        f"apart, {needed:.1f} m are needed (radii and jitter); "
                        "widen the fan or lower the jitter",
                    )
                )
    return found


def _gap(obstacle: Obstacle, x: float, y: float) -> float:
    """The distance from a point to an obstacle, 0 inside it."""
    dx, dy = x - obstacle.position_m[0], y - obstacle.position_m[1]
    if obstacle.radius_m is not None:
        return max(math.hypot(dx, dy) - obstacle.radius_m, 0.0)
    assert obstacle.size_m is not None
    angle = math.radians(obstacle.angle_deg)
    along, across = (
        dx * math.cos(angle) + dy * math.sin(angle),
        -dx * math.sin(angle) + dy * math.cos(angle),
    )
    return math.hypot(
        max(abs(along) - obstacle.size_m[0] / 2, 0.0), max(abs(across) - obstacle.size_m[1] / 2, 0.0)
    )
