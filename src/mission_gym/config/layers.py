"""Layers: the sources of config values, and which source wins.

flag > --set > --config > preset > shipped settings of the environment > plan > profile of the algorithm >
default. The plan's values arrive later, through `Resolved.with_values`. Every value keeps the text of its
source, and all problems are reported at once. Flags, presets and settings use field names without a section.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mission_gym.config.fields import Schema
from mission_gym.config.plain_yaml import SourcedValue, read_file, read_yaml, to_plain
from mission_gym.config.schema import DEFAULT_ENV_ID, Config, Settled, settle_types
from mission_gym.config.types import split_names
from mission_gym.errors import ConfigError, nearest

_HERE = ("flag ", "argument ", "--set ")
_EXPLICIT = (*_HERE, "config ")
_OTHER_NAMES = {"backend": "vector", "num_envs": "n_envs"}  # names that other libraries use
_VIA = " via config "
_Layer = dict[str, SourcedValue]  # by path


@dataclass(frozen=True)
class Resolved:
    """A config, with the text of each value's source by `section.field`."""

    config: Config
    sources: dict[str, str]
    schema: Schema

    @cached_property
    def settled(self) -> Settled:
        """The config in the types without `auto`, when none is left."""
        return settle_types(self.config)

    def explicit(self, path: str) -> bool:
        """Whether the user gave this value by flag, argument, --set or --config."""
        return self.sources[path].startswith(_EXPLICIT)

    def typed(self, path: str) -> bool:
        """Whether the user typed this value (flag, argument, --set) instead of reading it from a file."""
        source = self.sources[path]
        return source.startswith(_HERE) and _VIA not in source

    @property
    def files(self) -> set[Path]:
        """The config and job files that values came from."""
        named = (f" {source}".rpartition(" config ") for source in self.sources.values())
        return {Path(path) for _, found, path in named if found}

    def entries(self) -> _Layer:
        """Every value with its source, as one layer."""
        return {path: SourcedValue(self.config.value(path), source) for path, source in self.sources.items()}

    @property
    def preset(self) -> str | None:
        """The preset that was used, if any."""
        named = (source.split()[1] for source in self.sources.values() if source.startswith("preset "))
        return next(named, None)

    def with_values(self, values: Mapping[str, Any], source: str) -> Resolved:
        """Return a copy with the values at these paths replaced and validated."""
        changed = {path: SourcedValue(value, source) for path, value in values.items()}
        return _build(self.schema, self.entries() | changed, [])


@cache
def read_presets() -> dict[str, dict[str, Any]]:
    """The shipped presets by name: values by field name, and under an algorithm's name its own values."""
    return _read_shipped("presets.yaml")


@cache
def read_settings() -> dict[str, dict[str, Any]]:
    """The shipped settings by environment id or pattern (`ALE/*`), in the same form."""
    return _read_shipped("settings.yaml")


def find_settings(env_id: str) -> str | None:
    """The key of an environment's settings: its id, with or without the module, or the longest pattern that
    matches."""
    rows, name = read_settings(), env_id.rpartition(":")[2]
    exact = [key for key in (env_id, name) if key in rows]
    patterns = sorted((key for key in rows if key.endswith("*") and name.startswith(key[:-1])), key=len)
    return next(iter([*exact, *reversed(patterns)]), None)


def name_settings(key: str, algo: str) -> str:
    """The source text of shipped settings: their key, and their origin if we did not measure them."""
    origin = origin_of(read_settings()[key], algo)
    return f"settings {key}" + (f" ({origin})" if origin else "")


def origin_of(row: Mapping[str, Any], algo: str) -> str | None:
    """The origin of an algorithm's settings, or of the whole row."""
    origin: str | None = row.get(algo, {}).get("origin", row.get("origin"))
    return origin


def values_for(row: Mapping[str, Any], algo: str, schema: Schema) -> dict[str, Any]:
    """The values of a preset or of settings for an algorithm: the shared ones and its own."""
    shared = {name: row[name] for name in row if name not in (*schema.algorithms, "cores")}
    return {name: value for name, value in {**shared, **row.get(algo, {})}.items() if name != "origin"}


def _read_shipped(name: str) -> dict[str, dict[str, Any]]:
    shipped: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_name(name).read_text("utf-8"), name)
    return shipped


def resolve(
    schema: Schema,
    env_id: str | None,
    flags: Mapping[str, Any],
    *,
    sets: Sequence[str] = (),
    config_file: Path | None = None,
    preset: str | None = None,
    base: Resolved | None = None,
    from_python: bool = False,
    via: Path | None = None,
) -> Resolved:
    """Merge flags (by field name), `section.field=value` texts, a file, a preset, settings and defaults.

    base: the config of a parent run, which replaces settings, profile and defaults. from_python: flags are
    arguments of a function, and messages call them so. via: the file that flags and `sets` came from, so that
    they do not count as typed. Raises one ConfigError with all problems.
    """
    problems: list[str] = []
    later: list[str] = []  # problems of the layers below the flags
    through = f"{_VIA}{via}" if via else ""
    below = [
        _place(_split_sets(sets, later, through), schema.path_of_key, later),
        _place_file(schema, config_file, later) if config_file else {},
    ]
    algo = _choose_algo(schema, flags, _overlay(below), base)
    names = schema.paths_of_names(algo)
    given = [] if env_id is None else [("env_id", env_id, "argument env" if from_python else "flag ENV")]
    given += [(name, value, _flag_source(name, value, from_python)) for name, value in flags.items()]
    given = [(name, value, f"{source}{through}") for name, value, source in given]
    layers = [_place(given, names, problems), *below]
    problems += later
    layers.append(_place_preset(schema, preset, algo, problems) if preset else {})
    entries = _overlay(layers)
    if layers[-1] and not any(entries[path] == entry for path, entry in layers[-1].items()):
        problems.append(
            f"preset {preset} changes nothing: other options override all its values; remove it [--preset]"
        )
    if base is not None:
        return _build(schema, _overlay([entries, base.entries()]), problems)
    chosen = entries.get("env.env_id")
    if found := find_settings(str(chosen.value) if chosen else DEFAULT_ENV_ID):
        source = name_settings(found, algo)
        values = values_for(read_settings()[found], algo, schema)
        shipped = [(key, value, source) for key, value in values.items()]
        entries = _overlay([entries, _place(shipped, names, problems)])
    if algo in schema.algorithms:
        source = f"profile of {algo}: measured, see its page"
        profile = schema.algorithms[algo].PROFILE
        entries = _overlay([entries, {path: SourcedValue(profile[path], source) for path in profile}])
    return _build(schema, entries, problems)


def apply_image_profile(resolved: Resolved) -> Resolved:
    """Replace defaults by the algorithm's profile for image observations."""
    profile = resolved.config.algorithm.IMAGE_PROFILE
    values = {path: value for path, value in profile.items() if resolved.sources[path] == "default"}
    source = f"profile of {resolved.config.run.algo} for images: measured, see its page"
    return resolved.with_values(values, source) if values else resolved


def apply_waiting_profile(resolved: Resolved) -> Resolved:
    """Replace the sizes of rollouts by the algorithm's profile for environments that wait on an event loop,
    unless one of them, or another backend, was chosen."""
    algo, profile = resolved.config.run.algo, resolved.config.algorithm.WAITING_PROFILE
    sources = {resolved.sources[path] for path in profile}
    is_open = all(source == "default" or source.startswith("profile ") for source in sources)
    if not profile or not is_open or resolved.config.vector.vector != "auto":
        return resolved
    return resolved.with_values(dict(profile), f"profile of {algo} for environments that wait")


def _choose_algo(schema: Schema, flags: Mapping[str, Any], below: _Layer, base: Resolved | None) -> str:
    """The algorithm whose fields the flags mean; an unknown one is reported with the other problems."""
    entry = below.get("run.algo")
    default = base.config.run.algo if base is not None else next(iter(schema.algorithms))
    return str(flags.get("algo", entry.value if entry else default))


def read_config(schema: Schema, path: Path, section: str = "") -> Resolved:
    """Read the config.yaml of a run, each value with its original source. section: parse only that one, which
    is ten times as fast."""
    problems: list[str] = []
    entries = _place_file(schema, path, problems, section)
    own = {key: SourcedValue(value, _origin(source)) for key, (value, source) in entries.items()}
    return _build(schema, own, problems)


def format_config(resolved: Resolved) -> str:
    """The text of config.yaml, also a valid --config file: values by section, and the `sources:` map."""
    values = {name: section.model_dump() for name, section in resolved.config.sections().items()}
    content = {**to_plain(values), "sources": resolved.sources}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _flag_source(name: str, value: Any, from_python: bool) -> str:
    flag = f"flag --{'no-' if value is False else ''}{name.replace('_', '-')}"
    return f"argument {name}" if from_python else flag


def _origin(source: str) -> str:
    """The source of a value before it was stored in a config.yaml."""
    return source.split(_VIA)[0]


def _overlay(layers: Sequence[_Layer]) -> _Layer:
    """Merge layers; the first has the highest priority."""
    merged: _Layer = {}
    for layer in reversed(layers):
        merged |= layer
    return merged


def _place(items: Iterable[tuple[str, Any, str]], paths: Mapping[str, str], problems: list[str]) -> _Layer:
    """Make a layer from (name, value, source); unknown and repeated names become problems."""
    layer: _Layer = {}
    for name, value, source in items:
        path = paths.get(name)
        if path is None:
            meant = _OTHER_NAMES.get(name, "")
            hint = f" (did you mean {meant!r}?)" if meant in paths else nearest(name, paths)
            problems.append(f"{name!r} is not a known field{hint}; correct the name [{source}]")
        elif path in layer:
            problems.append(f"{path} is given twice; keep one [{layer[path].source}; {source}]")
        else:
            layer[path] = SourcedValue(value, source)
    return layer


def _split_sets(sets: Sequence[str], problems: list[str], through: str) -> list[tuple[str, Any, str]]:
    items: list[tuple[str, Any, str]] = []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            problems.append(f"{text!r} has no value; write section.field=value, like ppo.gamma=0.98 [--set]")
            continue
        try:
            source = f"--set {key.strip()}"
            items.append((key.strip(), read_yaml(value, source), f"{source}{through}"))
        except ConfigError as error:
            problems += error.problems
    return items


def _place_preset(schema: Schema, preset: str, algo: str, problems: list[str]) -> _Layer:
    presets = read_presets()
    if preset not in presets:
        known = ", ".join(presets)
        problems.append(
            f"preset {preset!r} is unknown{nearest(preset, presets)}; choose one of {known} [--preset]"
        )
        return {}
    values = values_for(presets[preset], algo, schema)
    items = [(name, value, f"preset {preset}") for name, value in values.items()]
    return _place(items, schema.paths_of_names(algo), problems)


def _place_file(schema: Schema, path: Path, problems: list[str], section: str = "") -> _Layer:
    """Make a layer from a config file; values in its `sources:` map keep that source, `via` the file."""
    where = f"config {path}"
    try:
        content = read_file(path, section) or {}
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
    for part, fields in content.items():
        if part not in schema.sections:
            hint, known = nearest(str(part), schema.sections), ", ".join(schema.sections)
            paths = schema.paths_of_names(next(iter(schema.algorithms)))
            if part in paths:
                hint = f"; write the field below `{paths[part].split('.')[0]}:`"
            problems.append(f"{part!r} is not a section{hint}; the sections are {known} [{where}]")
        elif isinstance(fields, dict):
            for name, value in fields.items():
                key = f"{part}.{name}"
                origin = sources.get(schema.path_of_key.get(key))
                items.append((key, value, f"{_origin(str(origin))}{_VIA}{path}" if origin else where))
        elif fields is not None:
            problems.append(f"section {part!r} holds {fields!r}; write its fields below it [{where}]")
    return _place(items, schema.path_of_key, problems)


def _build(schema: Schema, entries: _Layer, problems: list[str]) -> Resolved:
    """Validate the values; missing ones get their defaults."""
    problems = list(problems)
    algo = str(entries["run.algo"].value) if "run.algo" in entries else next(iter(schema.algorithms))
    for field in schema.fields:
        entry = entries.get(field.path)
        if entry is None or not field.choices:
            continue
        values = split_names(entry.value) if isinstance(field.default, tuple) else [entry.value]
        for value in [value for value in values if value not in field.choices]:
            known, hint = ", ".join(map(repr, field.choices)), nearest(str(value), field.choices)
            problems.append(f"{field.name}={value} should be one of {known}{hint} [{entry.source}]")
    others = schema.algorithms.keys() - {algo}
    if algo not in schema.algorithms:
        raise ConfigError(problems)
    by_section: dict[str, dict[str, Any]] = {section: {} for section in schema.sections}
    for path, entry in entries.items():
        section, name = path.split(".")
        by_section[section][name] = entry.value
        if section in others and entry.source.startswith(_EXPLICIT):
            cause = f"it is a field of {section}, and the algorithm is {algo}"
            problems.append(f"{name}={entry.value} is not used: {cause} [{entry.source}]")
    made: dict[str, Any] = {}
    for section in [name for name in by_section if name not in others]:
        try:
            checked = schema.sections[section].model_validate(by_section[section])
            made["algorithm" if section == algo else section] = checked
        except ValidationError as error:
            problems += _explain(error, section, entries)
    if problems:
        raise ConfigError(problems)
    sources = {path: entries[path].source if path in entries else "default" for path in schema.paths(algo)}
    return Resolved(Config(**made), sources, schema)


def _explain(error: ValidationError, section: str, entries: _Layer) -> list[str]:
    """Rewrite pydantic's errors in our form; only the first of each field."""
    explained: dict[str, list[str]] = {}
    for item in error.errors(include_url=False):
        name = str(item["loc"][0])
        if name in explained:
            continue
        value, source = entries[f"{section}.{name}"]
        if item["type"] == "value_error":
            wrong = item["ctx"]["error"]
            cause = wrong.__cause__  # a value that names a file may have several problems
            found = cause.problems if isinstance(cause, ConfigError) and str(cause) == str(wrong) else [wrong]
            explained[name] = [f"{name}: {each} [{source}]" for each in found]
        else:
            rule = re.sub(r"^(Input|String|Tuple) ", "", item["msg"])
            explained[name] = [f"{name}={value} {rule} [{source}]"]
    return [problem for problems in explained.values() for problem in problems]
