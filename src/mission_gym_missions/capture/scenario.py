"""A mission as its YAML files say it: a level, the kinds of units, the table of reward terms.

In: a level's name and a folder. Out: a checked Scenario, or one ConfigError with every problem, each with
file, line and rule. The meaning and unit of each value is in the shipped files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from mission_gym.config.plain_yaml import Key, YamlModel, YamlTree, check_tree, read_tree
from mission_gym.errors import ConfigError, nearest
from mission_gym_missions.capture.placing import placing_problems
from mission_gym_missions.capture.sim.layout import TERMS

SHIPPED = Path(__file__).parent / "levels"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Angle = Annotated[float, Field(ge=0, le=360)]
Pair = Annotated[list[Finite], Field(min_length=2, max_length=2)]
Names = Annotated[list[str], Field(min_length=1, max_length=16)]


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
    """A circle with a radius, or a rectangle (width, height) turned by an angle."""

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


class Scenario(BaseModel):
    """Everything that defines a mission."""

    model_config = ConfigDict(frozen=True)

    name: str
    level: Level
    units: dict[str, UnitKind]
    reward: dict[str, Term]


def load_scenario(level: str = "normal", config_dir: str | Path | None = None) -> Scenario:
    """Read and check a level from `config_dir`, or from the shipped files."""
    folder = SHIPPED if config_dir is None else Path(config_dir)
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {str(folder)!r}; give one that holds {level}.yaml, units.yaml and "
            "reward.yaml [config_dir]"
        )
    levels = sorted({path.stem for path in folder.glob("*.yaml")} - {"units", "reward"})
    if level not in levels and levels:
        raise ConfigError(
            f"there is no level {level!r}{nearest(level, levels)} in {folder}; it has {', '.join(levels)} "
            "[level]"
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
    problems += [f"{text} [{level_tree.place(key)}]" for key, text in _find_problems(scenario)]
    if problems:
        raise ConfigError(problems)
    return scenario


def _apply_changes(level: YamlTree, units: YamlTree, reward: YamlTree, problems: list[str]) -> None:
    """Lay the level's changes of units and reward over the general ones."""
    changes = level.value.get("changes", {}) if isinstance(level.value, dict) else {}
    for name, tree in (("units", units), ("reward", reward)):
        if not isinstance(tree.value, dict):
            kind = type(tree.value).__name__
            problems.append(f"the file holds a {kind}; it must map names to values [{tree.place(())}]")
            tree.value = {}
        changed = changes.get(name, {}) if isinstance(changes, dict) else {}
        if not isinstance(changed, dict):
            problems.append(f"changes.{name} must map names to values [{level.place(('changes', name))}]")
            continue
        for unknown in sorted(set(map(str, changed)) - set(map(str, tree.value))):
            problems.append(
                f"changes.{name} names {unknown!r}, which {name}.yaml does not have"
                f"{nearest(unknown, map(str, tree.value))}; correct the name "
                f"[{level.place(('changes', name, unknown))}]"
            )
        known = {key: value for key, value in changed.items() if key in tree.value}
        _merge(tree.value, known)
        prefix: Key = ("changes", name)
        tree.places |= {
            key[2:]: place for key, place in level.places.items() if key[:2] == prefix and key[2:]
        }


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            _merge(base[name], value)
        else:
            base[name] = value


def _find_problems(scenario: Scenario) -> list[tuple[Key, str]]:
    """What no single value shows: names, shapes, and where things stand. Each with the key to point at."""
    level, found = scenario.level, list[tuple[Key, str]]()
    for side, names in (("attackers", level.attackers.units), ("defenders", level.defenders.units)):
        for index, name in enumerate(names):
            if name not in scenario.units:
                known, hint = ", ".join(scenario.units), nearest(name, scenario.units)
                found.append(
                    (
                        (side, "units", index),
                        f"unit {name!r} is not in units.yaml{hint}; use one of {known}",
                    )
                )
    for index, item in enumerate(level.obstacles):
        if (item.radius_m is None) == (item.size_m is None):
            found.append(
                (
                    ("obstacles", index),
                    f"obstacle {index} needs radius_m (a circle) or size_m (a rectangle), and not both",
                )
            )
    if level.tag.full_range_m > level.tag.range_m:
        found.append(
            (
                ("tag", "full_range_m"),
                f"tag.full_range_m={level.tag.full_range_m} is above range_m={level.tag.range_m}; "
                "full damage can't reach further than the tag",
            )
        )
    return found or placing_problems(level, scenario.units)
