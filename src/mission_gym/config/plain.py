"""Plain YAML: text to values and back, without anything that could run code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from mission_gym.errors import ConfigError

_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built
_MAX_BYTES, _MAX_DEPTH, _MAX_DIGITS = 1 << 20, 32, 1000
_NUMBER = re.compile(r"[-+.]?[0-9]")  # how it begins; long ones take quadratic time


class Loader(_Safe):  # type: ignore[misc]
    """Gives plain values alone: what looks like a date stays text."""


Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(node))


def check_yaml(text: str) -> None:
    """Refuse what a small text could fill the memory with, or keep us busy for hours: YAMLError."""
    depth = 0
    event: Any  # its kinds have different fields
    for event in yaml.parse(text, Loader=Loader):
        what, value = "", getattr(event, "value", "")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if tag := getattr(event, "tag", None):
            raise yaml.constructor.ConstructorError(
                problem=f"could not determine a constructor for the tag {tag!r}",
                problem_mark=event.start_mark,
            )
        if getattr(event, "anchor", None) is not None:
            what = f"anchors and aliases such as {event.anchor!r} are not read"
        elif depth > _MAX_DEPTH:
            what = f"values are nested more than {_MAX_DEPTH} deep"
        elif len(value) > _MAX_DIGITS and event.implicit[0] and _NUMBER.match(value):
            what = f"a number has more than {_MAX_DIGITS} digits"
        if what:
            raise yaml.MarkedYAMLError(problem=what, problem_mark=event.start_mark)


def read_text(path: Path) -> str:
    """The text of a YAML file; YAMLError if it is too long to be one of ours."""
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise yaml.YAMLError(f"the file is longer than {_MAX_BYTES} bytes")
    return data.decode("utf-8")


def read_yaml(text: str, where: str) -> Any:
    """Return the plain values of a YAML text; `where` names it in messages."""
    try:
        check_yaml(text)
        return yaml.load(text, Loader=Loader)  # a safe one
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(
            f"only plain YAML values are read, and nothing in it was run: {_brief(error)};"
            f" remove the tag or key [{where}]"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"this is not valid YAML: {_brief(error)}; correct it [{where}]") from error


def read_file(path: Path, section: str = "") -> Any:
    """Return the plain values of a config file; with `section` only those, of a file that we wrote."""
    where = f"config {path}"
    try:
        text = read_text(path)
        part = re.search(rf"^{section}:\n(?: .*\n)+", text, re.MULTILINE) if section else None
        return read_yaml(part[0] if part else text, where)
    except yaml.YAMLError as error:
        raise ConfigError(f"this is not a config file: {error} [{where}]") from error
    except OSError as error:
        raise ConfigError(f"the file can't be read: {error.strerror}; check the path [{where}]") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file is not UTF-8 text; save it as UTF-8 YAML [{where}]") from error


class Stored(NamedTuple):
    """A value of a config, and where it came from."""

    value: Any
    source: str


def read_stored(path: Path) -> dict[str, Stored]:
    """The values of a run's own config.yaml by `section.field`, as they stand there; ConfigError if it is not
    one. Needs no schema: what reads runs need not know the algorithms."""
    where, content = f"config {path}", read_file(path)
    sources = content.pop("sources", None) if isinstance(content, dict) else None
    if not isinstance(sources, dict) or not all(isinstance(fields, dict) for fields in content.values()):
        raise ConfigError(f"this is not the config.yaml of a run [{where}]")
    return {
        f"{section}.{name}": Stored(value, str(sources.get(f"{section}.{name}", "default")))
        for section, fields in content.items()
        for name, value in fields.items()
    }


def _brief(error: Exception) -> str:
    """The problem and its line, without YAML's excerpt of the text."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return str(error).splitlines()[0]


def to_plain(value: Any) -> Any:
    """Return `value` as the lists, mappings and scalars that it will be after a trip through a file.

    Raises ValueError for anything else, so that a run and its resume get the same value.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump()
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
