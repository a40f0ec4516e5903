"""From the text of a wrapper to a call: our short names, or `module:callable(arguments)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Any, NamedTuple

from mission_gym.config.calls import NamedCall, parse_call, split_short
from mission_gym.errors import ConfigError, UsageError, nearest

RENDERS_ITSELF = "renders_itself"  # attribute of a wrapper that takes render_mode instead of the environment
_ANY = 1 << 10
_KINDS = {int: "a whole number above 0", float: "a number", str: "a name"}


class ShortName(NamedTuple):
    """A wrapper with a short name: its class in `wrappers`, and the number and kind of its arguments."""

    target: str
    usage: str
    text: str
    kind: type = int
    least: int = 0
    most: int = 0

    @property
    def code(self) -> str:
        return f"mission_gym.env.wrappers:{self.target}"


SHORT_NAMES = {
    "frame-stack": ShortName("FrameStack", "frame-stack:4", "stack the last 4 observations", most=1),
    "frame-skip": ShortName("FrameSkip", "frame-skip:4", "repeat each action 4 times, sum rewards", most=1),
    "grey": ShortName("Grey", "grey", "convert colour images to grey"),
    "resize": ShortName(
        "Resize", "resize:84 or resize:84,96", "scale images: height, width", least=1, most=2
    ),
    "crop": ShortName("Crop", "crop:64 or crop:64,96", "crop images: height, width", least=1, most=2),
    "pool": ShortName("MeanPool", "pool:2", "replace squares of 2 x 2 pixels by their mean", most=1),
    "atari": ShortName("Atari", "atari", "no-ops, 4 frames per step, grey, 84 x 84; add frame-stack:4"),
    "time-limit": ShortName("TimeLimit", "time-limit:500", "truncate episodes at 500 steps", least=1, most=1),
    "clip-reward": ShortName("ClipReward", "clip-reward:1", "clip rewards to -1..1", float, most=1),
    "last-action": ShortName("LastAction", "last-action", "add the last action to the observation"),
    "agent-id": ShortName("AgentId", "agent-id", "add each agent's number to its observation"),
    "drop": ShortName("Drop", "drop:mission", "remove keys of a Dict observation", str, least=1, most=_ANY),
    "weigh": ShortName("Weigh", "weigh:1,0.5", "weighted sum of a vector reward", float, least=1, most=_ANY),
}


def read_wrapper(text: str) -> NamedCall:
    """Return the call of a wrapper's text; UsageError for an unknown or wrongly used short name."""
    short = split_short(text)
    if short is not None and (short[0] in SHORT_NAMES or not _names_code(text)):
        return _read_short(text, *short)
    try:
        return parse_call(text)
    except ConfigError as error:
        raise UsageError(f"wrapper {error} [--wrap]") from error


def _names_code(text: str) -> bool:
    module, colon, name = text.strip().partition(":")
    return bool(colon) and all(part.isidentifier() for part in f"{module}.{name}".split("."))


def name_code(texts: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return the code that wrappers name, without arguments, so that it can be judged before it is
    imported."""
    return tuple(read_wrapper(text).name for text in texts)


def list_short() -> list[dict[str, str]]:
    """List the wrappers with a short name: name, usage, description and code."""
    return [
        {"name": name, "usage": short.usage, "text": short.text, "wrapper": short.code}
        for name, short in SHORT_NAMES.items()
    ]


def check_arguments(text: str, wrapper: Callable[..., Any], call: NamedCall) -> None:
    """Raise UsageError for arguments that the wrapper does not take."""
    try:
        signature = inspect.signature(wrapper)
    except (ValueError, TypeError):  # compiled code may have none
        return
    try:
        signature.bind(None, *call.args, **call.kwargs)
    except TypeError as error:
        raise UsageError(
            f"wrapper {text!r}: {error}; it takes {signature}, the environment first [--wrap]"
        ) from error


def _read_short(text: str, name: str, args: tuple[str, ...]) -> NamedCall:
    if name not in SHORT_NAMES:
        raise UsageError(
            f"wrapper {text!r} is unknown{nearest(name, SHORT_NAMES)}; give module:callable(arguments), or a "
            "short name that `mission-gym wrappers` lists [--wrap]"
        )
    short = SHORT_NAMES[name]
    if not short.least <= len(args) <= short.most:
        raise UsageError(f"wrapper {text!r} has {len(args)} arguments; write {short.usage} [--wrap]")
    for arg in args:
        if not _is_valid(arg, short.kind):
            raise UsageError(
                f"wrapper {text!r}: {arg!r} is not {_KINDS[short.kind]}; write {short.usage} [--wrap]"
            )
    return NamedCall(short.code, tuple(map(short.kind, args)))


def _is_valid(text: str, kind: type) -> bool:
    if kind is int:
        return text.isdecimal() and int(text) > 0
    with suppress(ValueError):
        return bool(text) if kind is str else isfinite(float(text))
    return False
