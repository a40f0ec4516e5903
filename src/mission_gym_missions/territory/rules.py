"""The settings of a territory mission: the rules of `rules.yaml`, and the sizes, which are keyword arguments.

In: a file and sizes. Out: a checked TerritoryMission, or one ConfigError with every problem.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from mission_gym.config.plain_yaml import YamlModel, check_tree, read_tree
from mission_gym.errors import ConfigError

SHIPPED = Path(__file__).parent / "rules.yaml"
SQUARES = 32  # per side of the observed map, whatever the size
FRAME = 2  # squares of rock around it, so that a network sees where the map ends
VIEW = SQUARES + 2 * FRAME
SIZES = range(64, 257, SQUARES)
MAX_BOTS = 100

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10_000)]  # so that every product stays below 2^53
Positive = Annotated[int, Field(ge=1, le=10_000)]
Byte = Annotated[int, Field(ge=0, le=255)]
Share = Annotated[int, Field(ge=0, le=16)]
Intensity = Annotated[int, Field(ge=0, le=2)]


class Character(YamlModel):
    """How a kind of bots decides, in the order of the traits C_* of `sim/layout.py`."""

    pace: Annotated[int, Field(ge=0, le=8)]
    enemy_first: Annotated[int, Field(ge=0, le=1)]
    neutral_reserve: Share
    neutral_intensity: Intensity
    enemy_reserve: Share
    enemy_intensity: Intensity
    margin: Count


class Characters(YamlModel):
    settler: Character
    raider: Character
    turtle: Character
    opportunist: Character


class TerritoryTerms(YamlModel):
    land: Finite
    conquest: Finite
    victory: Finite
    eliminated: Finite
    rank: Finite
    time: Finite


class TerritoryRules(YamlModel):
    """The values of the file, which documents their meaning and unit."""

    start_troops: Positive
    max_steps: Positive
    victory_percent: Annotated[int, Field(ge=1, le=100)]
    water_below: Byte
    rock_above: Byte
    neutral_cost: Positive
    enemy_cost: Positive
    density_cost: Count
    ferry_cells: Annotated[int, Field(ge=0, le=16)]
    ferry_cost: Count
    income: Count
    land_income: Count
    cap: Positive
    land_cap: Positive
    characters: Characters
    terms: TerritoryTerms


class TerritoryMission(NamedTuple):
    """Everything that defines a mission."""

    rules: TerritoryRules
    size: int  # cells per side
    num_bots: int

    @property
    def max_steps(self) -> int:
        """The steps of an episode."""
        return self.rules.max_steps * self.size // 64


def load_mission(size: int, num_bots: int, rules_file: str | Path | None) -> TerritoryMission:
    """Read the rules and check all arguments of the environment."""
    tree = read_tree(SHIPPED if rules_file is None else Path(rules_file))
    problems = list(tree.problems)
    rules = None if problems else check_tree(TerritoryRules, tree, problems)
    if not _is_integer(size) or size not in SIZES:
        known = ", ".join(map(str, SIZES))
        problems.append(f"size={size!r} is not a map size; use one of {known} [size]")
    if not _is_integer(num_bots) or not 1 <= num_bots <= MAX_BOTS:
        problems.append(
            f"num_bots={num_bots!r} is not an integer from 1 to {MAX_BOTS}; correct it [num_bots]"
        )
    if problems or rules is None:
        raise ConfigError(problems)
    return TerritoryMission(rules, size, num_bots)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
