"""From the text of a wrapper to what is called: short names of our own, or `module:callable(arguments)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple

from mission_gym.config.calls import NamedCall, parse_call, split_short
from mission_gym.errors import ConfigError, UsageError, nearest

_MODULE = "mission_gym.env.wrappers"
_ANY = 1 << 10
_KINDS = {int: "a whole number above 0", float: "a number", str: "a name"}


class Short(NamedTuple):
    """A wrapper that has a short name: its class, and how many arguments of which kind it takes."""

    target: str
    usage: str
    text: str
    kind: type = int
    least: int = 0
    most: int = 0
    module: str = _MODULE
    draws: bool = False  # it takes a render mode, instead of the environment

    @property
    def code(self) -> str:
        """What it stands for."""
        return f"{self.module}:{self.target}"


SHORT = {
    "frame-stack": Short("FrameStack", "frame-stack:4", "show the last 4 observations together", most=1),
    "frame-skip": Short("FrameSkip", "frame-skip:4", "repeat every action 4 times, add up rewards", most=1),
    "grey": Short("Grey", "grey", "turn colour images into grey ones"),
    "resize": Short("Resize", "resize:84 or resize:84,96", "scale images: height, width", least=1, most=2),
    "crop": Short(
        "Crop",
        "crop:64 or crop:64,96",
        "show the middle of images: height, width",
        least=1,
        most=2,
        module="mission_gym.env.pictures",
    ),
    "pool": Short(
        "Pool",
        "pool:2",
        "show squares of 2 x 2 pixels as their mean",
        most=1,
        module="mission_gym.env.pictures",
    ),
    "atari": Short("Atari", "atari", "no-ops, 4 frames a step, grey, 84 x 84; let frame-stack:4 follow"),
    "time-limit": Short("TimeLimit", "time-limit:500", "truncate episodes at 500 steps", least=1, most=1),
    "clip-reward": Short("ClipReward", "clip-reward:1", "clip rewards to -1..1", float, most=1),
    "last-action": Short("LastAction", "last-action", "show the action before beside the observation"),
    "agent-id": Short("AgentId", "agent-id", "show each of several agents which one it is"),
    "drop": Short("Drop", "drop:mission", "leave keys of a Dict observation out", str, least=1, most=_ANY),
    "elements": Short(
        "Elements",
        "elements:16 or elements:16,2",
        "MiniWoB++: click one of 16 elements, or type one of 2 fields into it",
        most=3,
        module="mission_gym.env.elements",
        draws=True,
    ),
    "weigh": Short("Weigh", "weigh:1,0.5", "sum up a vector reward by weights", float, least=1, most=_ANY),
}


def read_wrapper(text: str) -> NamedCall:
    """What the text of a wrapper calls; UsageError for a short name that is not known or used wrongly."""
    short = split_short(text)
    if short is not None and (short[0] in SHORT or not _names_code(text)):
        return _read_short(text, *short)
    try:
        return parse_call(text)
    except ConfigError as error:
        raise UsageError(f"wrapper {error} [--wrap]") from error


def _names_code(text: str) -> bool:
    module, colon, name = text.strip().partition(":")
    return bool(colon) and all(part.isidentifier() for part in f"{module}.{name}".split("."))


def name_code(texts: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """The code that wrappers name, without their arguments: what is judged before it is imported."""
    return tuple(read_wrapper(text).name for text in texts)


def draws(text: str) -> bool:
    """Whether a wrapper draws by itself, in environments that can't."""
    short = split_short(text)
    return short is not None and short[0] in SHORT and SHORT[short[0]].draws


def list_short() -> list[dict[str, str]]:
    """The wrappers that have a short name: name, usage, text and what it stands for."""
    return [
        {"name": name, "usage": short.usage, "text": short.text, "wrapper": short.code}
        for name, short in SHORT.items()
    ]


def check_arguments(text: str, wrapper: Callable[..., Any], call: NamedCall) -> None:
    """Refuse arguments that the wrapper does not take, before it is called; UsageError."""
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
    if name not in SHORT:
        raise UsageError(
            f"wrapper {text!r} is unknown{nearest(name, SHORT)}; give module:callable(arguments), or a short"
            " name that `mission-gym wrappers` lists [--wrap]"
        )
    short = SHORT[name]
    if not short.least <= len(args) <= short.most:
        raise UsageError(f"wrapper {text!r} has {len(args)} arguments; write {short.usage} [--wrap]")
    values = []
    for arg in args:
        try:
            values.append(_CONVERT[short.kind](arg))
        except ValueError as error:
            raise UsageError(
                f"wrapper {text!r}: {arg!r} is not {_KINDS[short.kind]}; write {short.usage} [--wrap]"
            ) from error
    return NamedCall(short.code, tuple(values))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError
    return number


def _word(text: str) -> str:
    if not text:
        raise ValueError
    return text


_CONVERT: dict[type, Callable[[str], Any]] = {int: _count, float: _number, str: _word}
