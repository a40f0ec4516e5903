"""Layers: where each value comes from, and which source wins.

flag > --set > --config > preset > shipped settings of the environment > plan > device profile > default; plan
and profile come in through `Resolved.with_values`. Every value keeps the text of its source, and all problems
are told at once. Flags, presets and settings name a field alone: it is that of the chosen algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from mission_gym.config.plain import read_yaml, to_plain
from mission_gym.config.schema import ALGORITHMS, DEFAULT_ENV_ID, Config, describe_fields
from mission_gym.errors import ConfigError, nearest

# Names and aliases to paths, as files and --set write them.
_PATH_OF_KEY = {
    f"{field.path.split('.')[0]}.{name}": field.path
    for field in describe_fields()
    for name in (field.name, *field.aliases)
}
_PATHS = list(dict.fromkeys(_PATH_OF_KEY.values()))
_SECTIONS_TEXT = ", ".join(Config.model_fields)
_EXPLICIT = ("flag ", "--set ", "config ")
_VIA = " via config "


class _Entry(NamedTuple):
    value: Any
    source: str


_Layer = dict[str, _Entry]  # by path


@dataclass(frozen=True)
class Resolved:
    """A config and, by `section.field`, the text of each value's source."""

    config: Config
    sources: dict[str, str]

    def explicit(self, path: str) -> bool:
        """Tell whether the user gave this value (flag, --set or --config)."""
        return self.sources[path].startswith(_EXPLICIT)

    def entries(self) -> _Layer:
        """Return every value with its source, as one layer."""
        return {path: _Entry(self.config.value(path), self.sources[path]) for path in _PATHS}

    @property
    def preset(self) -> str | None:
        """The preset that some value comes from."""
        named = (source.split()[1] for source in self.sources.values() if source.startswith("preset "))
        return next(named, None)

    def with_values(self, values: Mapping[str, Any], source: str) -> Resolved:
        """Return a copy with the values at these paths replaced and checked."""
        return _build(self.entries() | {path: _Entry(value, source) for path, value in values.items()}, [])


@cache
def _paths_of_names(algo: str) -> dict[str, str]:
    """Names and aliases to paths, as flags, presets and settings write them; the algorithm's own first."""
    paths: dict[str, str] = {}
    for key, path in sorted(_PATH_OF_KEY.items(), key=lambda item: not item[0].startswith(f"{algo}.")):
        paths.setdefault(key.split(".")[1], path)
    return paths


@cache
def read_presets() -> dict[str, dict[str, Any]]:
    """Return the shipped presets: name to values by field name, those of another algorithm below its name."""
    return _read_shipped("presets.yaml")


@cache
def read_settings() -> dict[str, dict[str, Any]]:
    """Return the shipped settings by environment id, in the form of `read_presets`."""
    return _read_shipped("settings.yaml")


def values_for(row: Mapping[str, Any], algo: str) -> dict[str, Any] | None:
    """Return what a preset or settings say for an algorithm; None if that is nothing."""
    own = row if algo == ALGORITHMS[0] else row.get(algo)
    no_values = (*ALGORITHMS, "cores")
    return None if own is None else {name: value for name, value in own.items() if name not in no_values}


def _read_shipped(name: str) -> dict[str, dict[str, Any]]:
    shipped: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_name(name).read_text("utf-8"), name)
    return shipped


def resolve(
    env_id: str | None,
    flags: Mapping[str, Any],
    *,
    sets: Sequence[str] = (),
    config_file: Path | None = None,
    preset: str | None = None,
    base: Resolved | None = None,
) -> Resolved:
    """Lay flags (by field name), `section.field=value` texts, a file and a preset over settings and defaults.

    `base`, the config of a parent run, stands in for settings and defaults. Raises one ConfigError with
    every problem.
    """
    problems: list[str] = []
    later: list[str] = []  # problems below the flags
    below = [
        _place(_split_sets(sets, later), _PATH_OF_KEY, later),
        _place_file(config_file, later) if config_file else {},
    ]
    algo = _choose_algo(flags, _overlay(below), base)
    given = [] if env_id is None else [("env_id", env_id, "flag ENV")]
    given += [(name, value, _flag_text(name, value)) for name, value in flags.items()]
    layers = [_place(given, _paths_of_names(algo), problems), *below]
    problems += later
    layers.append(_place_preset(preset, algo, problems) if preset else {})
    entries = _overlay(layers)
    if layers[-1] and not any(entries[path] == entry for path, entry in layers[-1].items()):
        problems.append(
            f"preset {preset} changes nothing: stronger values replace all of it; remove it [--preset]"
        )
    if base is not None:
        entries = _overlay([entries, base.entries()])
    else:
        chosen = entries.get("env.env_id")
        name = str(chosen.value) if chosen else DEFAULT_ENV_ID
        values = values_for(read_settings().get(name, {}), algo) or {}
        shipped = [(key, value, f"settings {name}") for key, value in values.items()]
        entries = _overlay([entries, _place(shipped, _paths_of_names(algo), problems)])
    return _build(entries, problems)


def _choose_algo(flags: Mapping[str, Any], below: _Layer, base: Resolved | None) -> str:
    """The algorithm whose fields are meant; an unknown one is told of with the other values."""
    entry = below.get("run.algo")
    default = base.config.run.algo if base is not None else ALGORITHMS[0]
    return str(flags.get("algo", entry.value if entry else default))


def read_config(path: Path) -> Resolved:
    """Read a run's own config.yaml, each value with the source that it had when the run was made."""
    problems: list[str] = []
    entries = _place_file(path, problems)
    return _build({key: _Entry(value, _origin(source)) for key, (value, source) in entries.items()}, problems)


def format_config(resolved: Resolved) -> str:
    """Return the text of config.yaml: plain values by section and the `sources:` map; valid as --config."""
    content = {**to_plain(resolved.config.model_dump()), "sources": resolved.sources}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _flag_text(name: str, value: Any) -> str:
    return f"flag --{'no-' if value is False else ''}{name.replace('_', '-')}"


def _origin(source: str) -> str:
    """The source that a value had before it came through a run's config.yaml."""
    return source.split(_VIA)[0]


def _overlay(layers: Sequence[_Layer]) -> _Layer:
    """Merge layers, the strongest first."""
    merged: _Layer = {}
    for layer in reversed(layers):
        merged |= layer
    return merged


def _place(items: Iterable[tuple[str, Any, str]], paths: Mapping[str, str], problems: list[str]) -> _Layer:
    """Make a layer of (name, value, source); unknown and repeated names become problems."""
    layer: _Layer = {}
    for name, value, source in items:
        path = paths.get(name)
        if path is None:
            problems.append(
                f"{name!r} is not a known field{nearest(name, paths)}; correct the name [{source}]"
            )
        elif path in layer:
            problems.append(f"{path} is given twice; keep one [{layer[path].source}; {source}]")
        else:
            layer[path] = _Entry(value, source)
    return layer


def _split_sets(sets: Sequence[str], problems: list[str]) -> list[tuple[str, Any, str]]:
    items: list[tuple[str, Any, str]] = []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            problems.append(f"{text!r} has no value; write section.field=value, like ppo.gamma=0.98 [--set]")
            continue
        try:
            items.append((key.strip(), read_yaml(value, f"--set {key.strip()}"), f"--set {key.strip()}"))
        except ConfigError as error:
            problems += error.problems
    return items


def _place_preset(preset: str, algo: str, problems: list[str]) -> _Layer:
    presets = read_presets()
    if preset not in presets:
        known = ", ".join(presets)
        problems.append(
            f"preset {preset!r} is unknown{nearest(preset, presets)}; choose one of {known} [--preset]"
        )
        return {}
    values = values_for(presets[preset], algo)
    if values is None:
        known = ", ".join(name for name, row in presets.items() if values_for(row, algo) is not None)
        problems.append(f"preset {preset} is not for {algo}; choose one of {known} [--preset]")
        return {}
    items = [(name, value, f"preset {preset}") for name, value in values.items()]
    return _place(items, _paths_of_names(algo), problems)


def _place_file(path: Path, problems: list[str]) -> _Layer:
    """Make a layer of a config file; a value in its `sources:` map keeps that source, `via` the file."""
    where = f"config {path}"
    try:
        content = read_yaml(path.read_text("utf-8"), where) or {}
    except OSError as error:
        problems.append(f"the file can't be read: {error.strerror}; check the path [{where}]")
        return {}
    except UnicodeDecodeError:
        problems.append(f"the file is not UTF-8 text; save it as UTF-8 YAML [{where}]")
        return {}
    except ConfigError as error:
        problems += error.problems
        return {}
    sources = content.pop("sources", {}) if isinstance(content, dict) else {}
    if not isinstance(content, dict) or not isinstance(sources, dict):
        problems.append(
            f"the file and its `sources:` must be mappings; write `ppo:` and below it fields [{where}]"
        )
        return {}
    items: list[tuple[str, Any, str]] = []
    for section, fields in content.items():
        if section not in Config.model_fields:
            hint = nearest(str(section), Config.model_fields)
            if section in (paths := _paths_of_names(ALGORITHMS[0])):
                hint = f"; write the field below `{paths[section].split('.')[0]}:`"
            problems.append(
                f"{section!r} is not a section{hint}; the sections are {_SECTIONS_TEXT} [{where}]"
            )
        elif isinstance(fields, dict):
            for name, value in fields.items():
                key = f"{section}.{name}"
                origin = sources.get(_PATH_OF_KEY.get(key))
                items.append((key, value, f"{_origin(str(origin))}{_VIA}{path}" if origin else where))
        elif fields is not None:
            problems.append(f"section {section!r} holds {fields!r}; write its fields below it [{where}]")
    return _place(items, _PATH_OF_KEY, problems)


def _build(entries: _Layer, problems: list[str]) -> Resolved:
    """Check the values against the schema; every missing one gets its default."""
    sections: dict[str, dict[str, Any]] = {section: {} for section in Config.model_fields}
    for path, entry in entries.items():
        section, name = path.split(".")
        sections[section][name] = entry.value
    try:
        config = Config.model_validate(sections)
    except ValidationError as error:
        problems = problems + _explain(error, entries)
    if problems:
        raise ConfigError(problems)
    return Resolved(config, {path: entries[path].source if path in entries else "default" for path in _PATHS})


def _explain(error: ValidationError, entries: _Layer) -> list[str]:
    """Say pydantic's errors in our form, the first of each field."""
    explained: dict[str, str] = {}
    for item in error.errors(include_url=False):
        path = ".".join(str(part) for part in item["loc"][:2])
        if path in explained:
            continue
        value, source = entries[path]
        name = path.split(".")[1]
        if item["type"] == "value_error":
            explained[path] = f"{name}: {item['ctx']['error']} [{source}]"
        else:
            rule = re.sub(r"^(Input|String|Tuple) ", "", item["msg"])
            explained[path] = f"{name}={value} {rule} [{source}]"
    return list(explained.values())
