"""Plain YAML: text to values and back, without anything that could run code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from mission_gym.errors import ConfigError


def read_yaml(text: str, where: str) -> Any:
    """Return the plain values of a YAML text; `where` names it in messages."""
    try:
        return yaml.safe_load(text)
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(
            f"only plain YAML values are read, and nothing in it was run: {_brief(error)};"
            f" remove the tag or key [{where}]"
        ) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: what looks like a date and is none
        raise ConfigError(f"this is not valid YAML: {_brief(error)}; correct it [{where}]") from error


def _brief(error: Exception) -> str:
    """The problem and its line, without YAML's excerpt of the text."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return str(error).splitlines()[0]


def to_plain(value: Any) -> Any:
    """Return `value` as the lists, mappings and scalars that it will be after a trip through a file.

    Raises ValueError for anything else, so that a run and its resume get the same value.
    """
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_plain_scalar(key): to_plain(item) for key, item in value.items()}
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for scalar in (int, float, str):  # a subclass, such as NumPy's float64, becomes the plain type
        if isinstance(value, scalar):
            return scalar(value)
    kind = type(value).__name__
    raise ValueError(f"{value!r} is a {kind} and can't be stored; use numbers, text, lists and mappings")
