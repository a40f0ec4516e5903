"""The settings of a placement mission: the rules of `rules.yaml`, and the sizes, which are keyword arguments.

In: a file and sizes. Out: a checked PlacementMission, or one ConfigError with every problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from mission_gym.config.plain_yaml import YamlModel, check_tree, read_tree
from mission_gym.errors import ConfigError, nearest

SHIPPED = Path(__file__).parent / "rules.yaml"
INSTANCES = ("random", "fixed")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class PlacementTerms(YamlModel):
    coverage: Finite
    ridership: Finite
    waiting: Finite


class PlacementRules(YamlModel):
    """The values of the file, which documents their meaning and unit."""

    city_m: Positive
    walk_m: Positive
    ride_m: Positive
    queue_min: Positive
    terms: PlacementTerms
    covered_share: Annotated[float, Field(gt=0, le=1)]


class PlacementMission(NamedTuple):
    """Everything that defines a mission."""

    rules: PlacementRules
    num_sites: int
    num_stations: int
    num_demand: int
    fixed: bool  # every episode has the same instance


def load_mission(
    num_sites: int, num_stations: int, num_demand: int, instance: str, rules_file: str | Path | None
) -> PlacementMission:
    """Read the rules and check all arguments of the environment."""
    tree = read_tree(SHIPPED if rules_file is None else Path(rules_file))
    problems = list(tree.problems)
    rules = None if problems else check_tree(PlacementRules, tree, problems)
    problems += _find_problems(num_sites, num_stations, num_demand, instance)
    if problems or rules is None:
        raise ConfigError(problems)
    return PlacementMission(rules, num_sites, num_stations, num_demand, instance == "fixed")


def _find_problems(num_sites: int, num_stations: int, num_demand: int, instance: str) -> Iterator[str]:
    are_valid = True
    sizes = {"num_sites": (num_sites, 2), "num_stations": (num_stations, 1), "num_demand": (num_demand, 2)}
    for name, (size, least) in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < least:
            are_valid = False
            yield f"{name}={size!r} is not an integer of at least {least}; correct it [{name}]"
    if are_valid and num_stations > num_sites:
        yield (
            f"num_stations={num_stations} is above num_sites={num_sites}; a site takes one station: use "
            "fewer stations or more sites [num_stations]"
        )
    if instance not in INSTANCES:
        hint = nearest(str(instance), INSTANCES)
        yield f"instance={instance!r} is unknown{hint}; use random (a city per episode) or fixed [instance]"
