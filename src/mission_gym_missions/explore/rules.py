"""What defines an explore mission: the rules of `rules.yaml`. In: a file. Out: checked Rules, or one
ConfigError."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from mission_gym.config.plain_yaml import YamlModel, check_tree, read_tree
from mission_gym.errors import ConfigError

SHIPPED = Path(__file__).parent / "rules.yaml"

Count = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Terms(YamlModel):
    found: Finite
    closer: Finite
    request: Finite
    step: Finite
    gave_up: Finite
    budget: Finite


class Rules(YamlModel):
    """The values of the file; their meaning is there."""

    budget: Annotated[int, Field(ge=2)]
    steps_per_request: Count
    max_links: Annotated[int, Field(ge=1, le=200)]
    terms: Terms


def load_rules(rules_file: str | Path | None) -> Rules:
    """Read and check a file of rules, the shipped one if none is given."""
    tree = read_tree(SHIPPED if rules_file is None else Path(rules_file))
    problems = list(tree.problems)
    rules: Rules | None = None if problems else check_tree(Rules, tree, problems)
    if problems or rules is None:
        raise ConfigError(problems)
    return rules
