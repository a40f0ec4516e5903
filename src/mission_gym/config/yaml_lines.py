"""Plain YAML with the line of every key, so that a message can point at it. Nothing in a file is run.

A file is read into a Tree and checked against a pydantic model; every problem is told with file and line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from mission_gym.config.plain import Loader, check_yaml, read_text

Key = tuple[str | int, ...]


class Part(BaseModel):
    """What all parts share: unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass
class Tree:
    """The values of a file, and where each key of them is written, as `file, line n`."""

    value: Any = None
    places: dict[Key, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def place(self, key: Key) -> str:
        """Where a key is written, or the nearest thing above it that is."""
        while key not in self.places and key:
            key = key[:-1]
        return self.places.get(key, "")

    def change(self, changes: Any, key: Key, other: Tree) -> None:
        """Lay the mapping `changes`, written in `other` under `key`, over the values of this tree."""
        _merge(self.value, changes)
        for path, place in other.places.items():
            if path[: len(key)] == key and len(path) > len(key):
                self.places[path[len(key) :]] = place


def read_tree(path: Path) -> Tree:
    """Read a file; what is wrong with its form is in `problems`."""
    tree = Tree(places={(): f"{path}, line 1"})
    try:
        text = read_text(path)
        check_yaml(text)
        node = yaml.compose(text, Loader=Loader)
        if node is None:
            tree.problems.append(f"the file is empty; write values into it [{path}, line 1]")
        else:
            tree.value = _build(node, (), path, tree)
    except OSError as error:
        tree.problems.append(f"the file can't be read ({error.strerror}); check the path [{path}]")
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        what = getattr(error, "problem", None) or error
        tree.problems.append(f"this is not plain YAML: {what}; correct it [{path}, line {line}]")
    return tree


def check_tree(model: Any, tree: Tree, problems: list[str]) -> Any:
    """Validate a tree; None, with the problems noted, if it is wrong."""
    try:
        return TypeAdapter(model).validate_python(tree.value)
    except ValidationError as error:
        problems += [_explain(detail, tree) for detail in error.errors()]
        return None


def _explain(detail: Any, tree: Tree) -> str:
    """One message in our form from one of pydantic's."""
    key: Key = tuple(detail["loc"])
    name, above = ".".join(map(str, key)), ".".join(map(str, key[:-1])) or "the file"
    if detail["type"] == "extra_forbidden":
        return f"unknown key {key[-1]!r} in {above}; remove it or correct its name [{tree.place(key)}]"
    if detail["type"] == "missing":
        return f"{key[-1]!r} is missing in {above}; add it [{tree.place(key[:-1])}]"
    value = detail["input"]
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return f"{name}={shown}: {detail['msg'][0].lower()}{detail['msg'][1:]}; correct it [{tree.place(key)}]"


def _build(node: yaml.Node, key: Key, path: Path, tree: Tree) -> Any:
    tree.places.setdefault(key, f"{path}, line {node.start_mark.line + 1}")
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*key, index), path, tree) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        built: dict[Any, Any] = {}
        for name_node, item in node.value:
            place = f"{path}, line {name_node.start_mark.line + 1}"
            if not isinstance(name_node, yaml.ScalarNode):
                tree.problems.append(f"a key is a list or a mapping; write a text [{place}]")
                continue
            name = Loader("").construct_object(name_node)
            if name in built:
                tree.problems.append(f"key {name!r} is there twice; keep one of them [{place}]")
            tree.places[(*key, name)] = place
            built[name] = _build(item, (*key, name), path, tree)
        return built
    return Loader("").construct_object(node)


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            _merge(base[name], value)
        else:
            base[name] = value
