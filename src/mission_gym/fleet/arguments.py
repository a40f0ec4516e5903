"""Values by the names of flags -> the command line that gives them; what a member run is started with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from mission_gym.config.plain_yaml import to_plain


def make_arguments(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments of `train` or `branch` for values by field name; `env` is ENV, in front."""
    env = values.get("env")
    flags = (word for name, value in values.items() if name != "env" for word in _words(name, value))
    return (*([] if env is None else [str(env)]), *flags)


def _words(name: str, value: Any) -> Iterator[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    elif name == "set":
        for text in [value] if isinstance(value, str) else value:
            yield f"--set={text}"
    elif name == "curriculum" and isinstance(value, Mapping):
        yield f"--set=env.curriculum={_yaml(value)}"
    elif isinstance(value, Mapping):
        yield from (f"--{flag}", *(f"{key}={_yaml(item)}" for key, item in value.items()))
    elif isinstance(value, list | tuple) and any(isinstance(item, str) for item in value):
        yield from (f"--{flag}", *map(str, value))
    elif isinstance(value, list | tuple):
        yield f"--{flag}={','.join(map(str, value))}"
    else:
        yield f"--{flag}={_text(value)}"


def _text(value: Any) -> str:
    """As flags take it and YAML reads it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml(value: Any) -> str:
    """As YAML reads it back, type and all: `"3"` stays a text, 1e-05 a number."""
    text: str = yaml.safe_dump(to_plain(value), default_flow_style=True, width=1 << 30, allow_unicode=True)
    return text.removesuffix("...\n").strip()
