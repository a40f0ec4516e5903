"""Scenarios from YAML files: a level, the kinds of units and the table of reward terms.

In: a level's name and a folder. Out: a checked Scenario, or one ConfigError with every problem, each with
file, line and rule. The shipped files document the meaning and unit of each value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from mission_gym.config.plain_yaml import Key, YamlModel, YamlTree, check_tree, read_tree
from mission_gym.errors import ConfigError, nearest
from mission_gym_missions.capture.sim.layout import TERMS

SHIPPED = Path(__file__).parent / "levels"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Angle = Annotated[float, Field(ge=0, le=360)]
Pair = Annotated[list[Finite], Field(min_length=2, max_length=2)]
Names = Annotated[list[str], Field(min_length=1, max_length=16)]
Problem = tuple[Key, str]  # the key to point at, and the text


class UnitKind(YamlModel):
    max_speed_m_s: Positive
    acceleration_m_s2: Positive
    turn_rate_deg_s: Positive
    radius_m: Positive
    altitude: Share
    integrity: Positive
    sensor_range_m: NotNegative
    sensor_fov_deg: Angle
    tag_damage: NotNegative
    tag_cooldown_s: NotNegative


class Term(YamlModel):
    weight: Finite
    enabled: bool


class Time(YamlModel):
    physics_hz: Annotated[int, Field(ge=1, le=200)]
    ticks_per_command: Annotated[int, Field(ge=1)]
    ticks_per_sensing: Annotated[int, Field(ge=1)]
    limit_s: Positive
    stall_s: Positive
    stall_progress_m: Positive


class Objective(YamlModel):
    position_m: Pair
    radius_m: Positive
    jitter_m: NotNegative
    capture_s: Positive
    contested: bool


class Attackers(YamlModel):
    units: Names
    sides_deg: Annotated[list[Finite], Field(min_length=1)]
    distance_m: Positive
    fan_deg: Angle
    jitter_m: NotNegative


class Defenders(YamlModel):
    units: Names
    modes: Annotated[list[Literal["patrol", "guard", "intercept"]], Field(min_length=1)]
    post_distance_m: NotNegative
    post_turn_deg: Angle
    post_spread_deg: Angle
    jitter_m: NotNegative
    patrol_radius_m: NotNegative
    patrol_jitter_m: NotNegative
    leash_m: Positive
    standoff_m: NotNegative
    memory_s: NotNegative
    reaction_max_s: NotNegative
    random_action_share: Share
    aim_jitter_deg: NotNegative


class Tag(YamlModel):
    range_m: Positive
    full_range_m: NotNegative
    far_share: Share
    half_angle_deg: Angle


class Obstacle(YamlModel):
    """A circle with a radius, or a rectangle (width, height) rotated by an angle."""

    position_m: Pair
    radius_m: Positive | None = None
    size_m: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    angle_deg: Finite = 0.0


class Level(YamlModel):
    description: str
    arena_m: Positive
    time: Time
    objective: Objective
    attackers: Attackers
    defenders: Defenders
    tag: Tag
    obstacles: list[Obstacle]
    changes: dict[Literal["units", "reward"], Any] = Field(default_factory=dict)


Reward = create_model("Reward", __base__=YamlModel, **dict.fromkeys(TERMS, (Term, ...)))  # type: ignore[call-overload]


class Scenario(YamlModel):
    """Everything that defines a mission."""

    name: str
    level: Level
    units: dict[str, UnitKind]
    reward: dict[str, Term]


def load_scenario(level: str = "normal", config_dir: str | Path | None = None) -> Scenario:
    """Read and check a level from `config_dir`, or from the shipped files."""
    folder = SHIPPED if config_dir is None else Path(config_dir)
    if not folder.is_dir():
        raise ConfigError(
            f"the folder {str(folder)!r} does not exist; name one with {level}.yaml, units.yaml and "
            "reward.yaml [config_dir]"
        )
    levels = sorted({path.stem for path in folder.glob("*.yaml")} - {"units", "reward"})
    if level not in levels and levels:
        raise ConfigError(
            f"level {level!r} is not in {folder}{nearest(level, levels)}; use {', '.join(levels)} [level]"
        )
    level_tree, units_tree, reward_tree = (
        read_tree(folder / f"{name}.yaml") for name in (level, "units", "reward")
    )
    problems = [*level_tree.problems, *units_tree.problems, *reward_tree.problems]
    if problems:
        raise ConfigError(problems)
    _apply_changes(level_tree, units_tree, reward_tree, problems)
    read_level = check_tree(Level, level_tree, problems)
    units = check_tree(dict[str, UnitKind], units_tree, problems)
    reward = check_tree(Reward, reward_tree, problems)
    if problems or read_level is None or units is None or reward is None:
        raise ConfigError(problems)
    scenario = Scenario(name=level, level=read_level, units=units, reward=dict(reward))
    found = list(_find_problems(scenario)) or list(_find_misplaced(scenario))
    if found:
        raise ConfigError([f"{text} [{level_tree.location(key)}]" for key, text in found])
    return scenario


def _apply_changes(level: YamlTree, units: YamlTree, reward: YamlTree, problems: list[str]) -> None:
    """Apply the level's changes to the units and the reward."""
    changes = level.value.get("changes", {}) if isinstance(level.value, dict) else {}
    for name, tree in (("units", units), ("reward", reward)):
        if not isinstance(tree.value, dict):
            kind = type(tree.value).__name__
            problems.append(f"the file contains a {kind}; it must map names to values [{tree.location(())}]")
            tree.value = {}
        changed = changes.get(name, {}) if isinstance(changes, dict) else {}
        if not isinstance(changed, dict):
            problems.append(f"changes.{name} must map names to values [{level.location(('changes', name))}]")
            continue
        for unknown in sorted(set(map(str, changed)) - set(map(str, tree.value))):
            problems.append(
                f"changes.{name} names {unknown!r}, which is not in {name}.yaml"
                f"{nearest(unknown, map(str, tree.value))}; correct the name "
                f"[{level.location(('changes', name, unknown))}]"
            )
        known = {key: value for key, value in changed.items() if key in tree.value}
        _merge(tree.value, known)
        prefix: Key = ("changes", name)
        tree.locations |= {
            key[2:]: location for key, location in level.locations.items() if key[:2] == prefix and key[2:]
        }


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            _merge(base[name], value)
        else:
            base[name] = value


def _find_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield problems that involve several values: names, shapes and ranges."""
    level = scenario.level
    for side, names in (("attackers", level.attackers.units), ("defenders", level.defenders.units)):
        for index, name in enumerate(names):
            if name not in scenario.units:
                known, hint = ", ".join(scenario.units), nearest(name, scenario.units)
                yield (side, "units", index), f"unit {name!r} is not in units.yaml{hint}; use one of {known}"
    for index, item in enumerate(level.obstacles):
        if (item.radius_m is None) == (item.size_m is None):
            yield (
                ("obstacles", index),
                f"obstacle {index} needs either radius_m (a circle) or size_m (a rectangle)",
            )
    if level.tag.full_range_m > level.tag.range_m:
        yield (
            ("tag", "full_range_m"),
            f"tag.full_range_m={level.tag.full_range_m} is above range_m={level.tag.range_m}; full damage "
            "cannot reach further than the tag",
        )


def _find_misplaced(scenario: Scenario) -> Iterator[Problem]:
    """Yield the zone and the spawns that do not fit, wherever they are drawn."""
    level, fleet, zone = scenario.level, scenario.level.attackers, scenario.level.objective
    half = level.arena_m / 2
    reach = max(abs(value) for value in zone.position_m) + zone.jitter_m + zone.radius_m
    if reach > half:
        yield (
            ("objective", "position_m"),
            f"the zone reaches {reach:g} m from the centre (position, jitter and radius), outside the "
            f"arena of +-{half:g} m; move it or make it smaller",
        )
    kinds = [scenario.units[name] for name in fleet.units]
    yield from _find_overlaps(level, kinds)
    furthest, outside = half, ""
    for side in fleet.sides_deg:
        for name, kind, (x, y) in zip(fleet.units, kinds, _spawn_points(level, side), strict=True):
            room = kind.radius_m + fleet.jitter_m
            spawn = f"{name} of side {side:g} spawns at ({x:.1f}, {y:.1f}) +-{fleet.jitter_m:g} m"
            if max(abs(x), abs(y)) + room > furthest:
                furthest = max(abs(x), abs(y)) + room
                outside = f"{spawn}, outside the arena of +-{half:g} m; move the spawn"
            for number, obstacle in enumerate(level.obstacles):
                if kind.altitude == 0 and _gap(obstacle, x, y) < room:
                    yield ("obstacles", number), f"{spawn}, in obstacle {number}; move one of them"
    if outside:
        yield ("attackers", "distance_m"), outside


def _find_overlaps(level: Level, kinds: list[UnitKind]) -> Iterator[Problem]:
    """Yield pairs of units in the same altitude band whose jittered spawns can overlap."""
    fleet = level.attackers
    points = _spawn_points(level, 0.0)  # every side has the same fan
    for i, j in combinations(range(len(kinds)), 2):
        one, other = kinds[i], kinds[j]
        needed = one.radius_m + other.radius_m + 2 * fleet.jitter_m
        distance = math.dist(points[i], points[j])
        if (one.altitude > 0) == (other.altitude > 0) and distance < needed:
            yield (
                ("attackers", "fan_deg"),
                f"the spawns of {fleet.units[i]} and {fleet.units[j]} overlap: they are {distance:.1f} m "
                f"apart and need {needed:.1f} m (radii and jitter); widen the fan or lower the jitter",
            )


def _spawn_points(level: Level, side_deg: float) -> list[tuple[float, float]]:
    """Return the positions of the attackers on one side, before the jitter."""
    fleet, count = level.attackers, len(level.attackers.units)
    x, y = level.objective.position_m
    points = []
    for index in range(count):
        share = 2.0 * index / (count - 1) - 1.0 if count > 1 else 0.0
        angle = math.radians(side_deg + share * fleet.fan_deg)
        points.append((x + fleet.distance_m * math.cos(angle), y + fleet.distance_m * math.sin(angle)))
    return points


def _gap(obstacle: Obstacle, x: float, y: float) -> float:
    """Return the distance from a point to an obstacle, 0 inside it."""
    dx, dy = x - obstacle.position_m[0], y - obstacle.position_m[1]
    if obstacle.radius_m is not None:
        return max(math.hypot(dx, dy) - obstacle.radius_m, 0.0)
    assert obstacle.size_m is not None
    angle = math.radians(obstacle.angle_deg)
    along = abs(dx * math.cos(angle) + dy * math.sin(angle)) - obstacle.size_m[0] / 2
    across = abs(-dx * math.sin(angle) + dy * math.cos(angle)) - obstacle.size_m[1] / 2
    return math.hypot(max(along, 0.0), max(across, 0.0))
