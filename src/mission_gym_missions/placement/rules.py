"""What defines a placement mission: the rules of `rules.yaml`, and the sizes that are keyword arguments.

In: a file and sizes. Out: a checked Mission, or one ConfigError with every problem.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from mission_gym.config.plain_yaml import YamlModel, check_tree, read_tree
from mission_gym.errors import ConfigError, nearest

SHIPPED = Path(__file__).parent / "rules.yaml"
INSTANCES = ("random", "fixed")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Terms(YamlModel):
    coverage: Finite
    ridership: Finite
    waiting: Finite


class Rules(YamlModel):
    """The values of the file; their meaning and unit is there."""

    city_m: Positive
    walk_m: Positive
    ride_m: Positive
    queue_min: Positive
    terms: Terms
    covered_share: Annotated[float, Field(gt=0, le=1)]


class Mission(NamedTuple):
    """Everything that defines a mission."""

    rules: Rules
    num_sites: int
    num_stations: int
    num_demand: int
    fixed: bool  # every episode is the same instance


def load_mission(
    num_sites: int, num_stations: int, num_demand: int, instance: str, rules_file: str | Path | None
) -> Mission:
    """Read the rules and check everything; the arguments are those of the environment."""
    tree = read_tree(SHIPPED if rules_file is None else Path(rules_file))
    problems = list(tree.problems)
    rules = None if problems else check_tree(Rules, tree, problems)
    problems += _find_problems(num_sites, num_stations, num_demand, instance)
    if problems or rules is None:
        raise ConfigError(problems)
    return Mission(rules, num_sites, num_stations, num_demand, instance == "fixed")


def _find_problems(num_sites: int, num_stations: int, num_demand: int, instance: str) -> list[str]:
    found = []
    sizes = {"num_sites": (num_sites, 2), "num_stations": (num_stations, 1), "num_demand": (num_demand, 2)}
    for name, (size, least) in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < least:
            found.append(f"{name}={size!r} is not a whole number of at least {least}; correct it [{name}]")
    if not found and num_stations > num_sites:
        found.append(
            f"num_stations={num_stations} is above num_sites={num_sites}; a site takes one station: place "
            "fewer, or offer more sites [num_stations]"
        )
    if instance not in INSTANCES:
        found.append(
            f"instance={instance!r} is unknown{nearest(str(instance), INSTANCES)}; use random (a new one in "
            "every episode) or fixed [instance]"
        )
    return found
