"""The complete schema: the sections of every run, with the algorithms, backends and trackers of the tables.

`Schema` lists every field with its path, for flags, files and documentation.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from mission_gym.config.schema import AlgorithmSection, Config
from mission_gym.config.types import OneOf, Section, TypeText

_ALIASES = {  # Stable-Baselines3's names, which flags, files and Python accept too
    "n_steps": "n_steps_per_env", "total_timesteps": "timesteps", "lr": "learning_rate",
    "buffer_size": "replay_size", "net_arch": "network_arch", "activation_fn": "activation",
}  # fmt: skip


class FieldInfo(NamedTuple):
    """One field, for flags and documentation."""

    path: str  # section.field
    name: str  # the field; its flag has dashes for underscores
    type_text: str
    default: Any
    description: str
    aliases: tuple[str, ...]
    choices: tuple[str, ...] = ()  # the names that are allowed, if they come from a table

    @property
    def section(self) -> str:
        return self.path.split(".")[0]


@dataclass(frozen=True)
class Schema:
    """All sections and names that a config may have."""

    algorithms: Mapping[str, type[AlgorithmSection]]  # the first is the default
    backends: Mapping[str, str]  # name -> description
    trackers: Sequence[str]

    @cached_property
    def sections(self) -> dict[str, type[Section]]:
        """Every section by its name in files; those of all algorithms replace `algorithm`."""
        named: dict[str, type[Section]] = {}
        for name, holder in Config.model_fields.items():
            named |= self.algorithms if name == "algorithm" else {name: cast(Any, holder.annotation)}
        return named

    @cached_property
    def fields(self) -> list[FieldInfo]:
        """Every field in the order of the schema."""
        return list(_describe_fields(self))

    @cached_property
    def path_of_key(self) -> dict[str, str]:
        """`section.name`, with names and aliases, to paths; for files and --set."""
        return {
            f"{field.section}.{name}": field.path
            for field in self.fields
            for name in (field.name, *field.aliases)
        }

    def paths_of_names(self, algo: str) -> dict[str, str]:
        """Names and aliases to paths, for flags, presets and settings; the algorithm's fields come first."""
        own = {key: path for key, path in self.path_of_key.items() if key.startswith(f"{algo}.")}
        paths: dict[str, str] = {}
        for key, path in (own | self.path_of_key).items():
            paths.setdefault(key.split(".")[1], path)
        return paths

    def paths(self, algo: str) -> list[str]:
        """The paths of a run of this algorithm."""
        others = self.algorithms.keys() - {algo}
        return [field.path for field in self.fields if field.section not in others]


def _type_text(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_text(arguments[0])
    if origin is Literal:
        return "|".join(arguments)
    if origin in (Union, types.UnionType):
        return "|".join(_type_text(argument) for argument in arguments)
    if origin is tuple:
        inner = _type_text(arguments[0])
        return f"{inner},..." if inner == "int" else f"{inner} ..."
    if origin is dict:
        return "key=value ..."
    return "none" if annotation is type(None) else str(annotation.__name__)


def _describe_fields(schema: Schema) -> Iterator[FieldInfo]:
    for section, holder in schema.sections.items():
        for name, field in holder.model_fields.items():
            choice = next((item for item in field.metadata if isinstance(item, OneOf)), None)
            names = (*choice.others, *getattr(schema, choice.table)) if choice else ()
            type_text = next((item.text for item in field.metadata if isinstance(item, TypeText)), "")
            if names:
                type_text = "|".join(names) + (" ..." if get_origin(field.annotation) is tuple else "")
            description = field.description or ""
            if description.endswith(":"):
                description += f" {', '.join(f'{name} {text}' for name, text in schema.backends.items())}."
            yield FieldInfo(
                path=f"{section}.{name}",
                name=name,
                type_text=type_text or _type_text(field.annotation),
                default=field.default,
                description=description,
                aliases=tuple(alias for alias, target in _ALIASES.items() if target == name),
                choices=names,
            )
