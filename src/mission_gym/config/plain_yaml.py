"""Plain YAML: text to values and back; no tag or key in a file can run code.

`read_yaml` and `read_file` return values. `read_tree` also records the line of every key, and `check_tree`
validates such a tree with a pydantic model, so that each problem is reported with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from mission_gym.errors import ConfigError, nearest

_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast
_MAX_BYTES, _MAX_DEPTH, _MAX_DIGITS = 1 << 20, 32, 1000
_NUMBER = re.compile(r"[-+.]?[0-9]")  # the start of a number; parsing a long one takes quadratic time
Key = tuple[str | int, ...]


class Loader(_Safe):  # type: ignore[misc]
    """Reads plain values only; text that looks like a date stays text."""


Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(node))


def check_yaml(text: str) -> None:
    """Raise YAMLError for tags, and for constructs with which a short text could exhaust memory or time."""
    depth = 0
    event: Any  # event classes have different attributes
    for event in yaml.parse(text, Loader=Loader):
        problem, value = "", getattr(event, "value", "")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if tag := getattr(event, "tag", None):
            raise yaml.constructor.ConstructorError(
                problem=f"could not determine a constructor for the tag {tag!r}",
                problem_mark=event.start_mark,
            )
        if getattr(event, "anchor", None) is not None:
            problem = f"anchors and aliases such as {event.anchor!r} are not read"
        elif depth > _MAX_DEPTH:
            problem = f"values are nested more than {_MAX_DEPTH} deep"
        elif len(value) > _MAX_DIGITS and event.implicit[0] and _NUMBER.match(value):
            problem = f"a number has more than {_MAX_DIGITS} digits"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise yaml.YAMLError(f"the file is longer than {_MAX_BYTES} bytes")
    return data.decode("utf-8")


def read_yaml(text: str, where: str) -> Any:
    """Return the plain values of a YAML text. where: its name in error messages."""
    try:
        check_yaml(text)
        return yaml.load(text, Loader=Loader)  # a subclass of the safe loader
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(
            f"only plain YAML values are read, and nothing in it was run: {_brief(error)};"
            f" remove the tag or key [{where}]"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"this is not valid YAML: {_brief(error)}; correct it [{where}]") from error


def read_file(path: Path, section: str = "") -> Any:
    """Return the plain values of a config file. section: read only that one, from a file that we wrote."""
    where = f"config {path}"
    try:
        text = _read_text(path)
        part = re.search(rf"^{section}:\n(?: .*\n)+", text, re.MULTILINE) if section else None
        return read_yaml(part[0] if part else text, where)
    except yaml.YAMLError as error:
        raise ConfigError(f"this is not a config file: {error} [{where}]") from error
    except OSError as error:
        raise ConfigError(f"the file can't be read: {error.strerror}; check the path [{where}]") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file is not UTF-8 text; save it as UTF-8 YAML [{where}]") from error


class SourcedValue(NamedTuple):
    """A config value and the text of its source."""

    value: Any
    source: str


def read_stored(path: Path) -> dict[str, SourcedValue]:
    """Return the raw values of a run's config.yaml by `section.field`; ConfigError if it is not one.

    No schema is needed, so readers of runs do not load the algorithms.
    """
    where, content = f"config {path}", read_file(path)
    sources = content.pop("sources", None) if isinstance(content, dict) else None
    if not isinstance(sources, dict) or not all(isinstance(fields, dict) for fields in content.values()):
        raise ConfigError(f"this is not the config.yaml of a run [{where}]")
    return {
        f"{section}.{name}": SourcedValue(value, str(sources.get(f"{section}.{name}", "default")))
        for section, fields in content.items()
        for name, value in fields.items()
    }


def _brief(error: Exception) -> str:
    """The problem and its line, without YAML's excerpt of the text."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return str(error).splitlines()[0]


def to_plain(value: Any) -> Any:
    """Return `value` as the lists, mappings and scalars that a YAML file gives back.

    Raises ValueError for any other type, so that a run and its resume get the same value.
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


class YamlModel(BaseModel):
    """A part of a YAML file; unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass
class YamlTree:
    """The values of a file, and the location of each key as `file, line n`."""

    value: Any = None
    locations: dict[Key, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def location(self, key: Key) -> str:
        """The location of a key, or of its nearest parent that has one."""
        while key not in self.locations and key:
            key = key[:-1]
        return self.locations.get(key, "")


def read_tree(path: Path) -> YamlTree:
    """Read a file; syntax errors are collected in `problems`."""
    tree = YamlTree(locations={(): f"{path}, line 1"})
    try:
        text = _read_text(path)
        check_yaml(text)
        node = yaml.compose(text, Loader=Loader)
        if node is None:
            tree.problems.append(f"the file is empty; write values into it [{path}, line 1]")
        else:
            tree.value = _build(node, (), path, tree)
    except OSError as error:
        tree.problems.append(f"the file can't be read ({error.strerror}); check the path [{path}]")
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or error
        tree.problems.append(f"this is not plain YAML: {problem}; correct it [{path}, line {line}]")
    return tree


def check_tree(model: Any, tree: YamlTree, problems: list[str]) -> Any:
    """Validate a tree; if it is wrong, add the problems and return None."""
    try:
        return TypeAdapter(model).validate_python(tree.value)
    except ValidationError as error:
        problems += [_explain(detail, tree, model) for detail in error.errors()]
        return None


def _explain(detail: Any, tree: YamlTree, model: Any) -> str:
    """Rewrite one of pydantic's errors in our form, with the location in brackets."""
    key: Key = tuple(part for part in detail["loc"] if part != "[key]")
    name, above = ".".join(map(str, key)), ".".join(map(str, key[:-1])) or "the file"
    if detail["type"] == "extra_forbidden":
        hint = nearest(str(key[-1]), _list_names(model, key[:-1]))
        return f"unknown key {key[-1]!r}{hint} in {above}; remove it or correct its name{_at(tree, key)}"
    if detail["type"] == "missing":
        return f"{key[-1]!r} is missing in {above}; add it{_at(tree, key[:-1])}"
    if detail["type"] == "value_error":
        return f"{name or 'the file'}: {detail['ctx']['error']}{_at(tree, key)}"
    value, rule = detail["input"], re.sub(r" or instance of \w+$", "", detail["msg"])
    shown = f"={value!r}" if isinstance(value, str | int | float | None) else f" is a {type(value).__name__}"
    return f"{name or 'the file'}{shown}: {rule[0].lower()}{rule[1:]}; correct it{_at(tree, key)}"


def _at(tree: YamlTree, key: Key) -> str:
    location = tree.location(key)
    return f" [{location}]" if location else ""


def _list_names(model: Any, key: Key) -> Iterable[str]:
    """The field names of the model at a key; none if it is not a model."""
    for part in key:
        if part in getattr(model, "model_fields", {}):
            model = model.model_fields[part].annotation
            model = next((each for each in get_args(model) if hasattr(each, "model_fields")), model)
    return getattr(model, "model_fields", {})


def _build(node: yaml.Node, key: Key, path: Path, tree: YamlTree) -> Any:
    tree.locations.setdefault(key, f"{path}, line {node.start_mark.line + 1}")
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*key, index), path, tree) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        built: dict[Any, Any] = {}
        for name_node, item in node.value:
            location = f"{path}, line {name_node.start_mark.line + 1}"
            if not isinstance(name_node, yaml.ScalarNode):
                tree.problems.append(f"a key is a list or a mapping; write a text [{location}]")
                continue
            name = Loader("").construct_object(name_node)
            if name in built:
                tree.problems.append(f"key {name!r} is there twice; keep one of them [{location}]")
            tree.locations[(*key, name)] = location
            built[name] = _build(item, (*key, name), path, tree)
        return built
    return Loader("").construct_object(node)
