"""Named callables with arguments, `module:callable(stack_size=4)`, and short names, `frame-stack:4`.

Text is parsed and never evaluated: arguments are literals. `env/wrapper_names.py` defines the short names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from mission_gym.errors import ConfigError

_CALL = re.compile(r"([\w.]+:[\w.]+)\s*(\(.*\))?", re.DOTALL)
_SHORT = re.compile(r"([A-Za-z][\w-]*)(?::([^()]*))?")
_NEXT = re.compile(r",(?=\s*[A-Za-z][\w.-]*:)")  # a comma before another wrapper
_LONGEST = 4000
_NOT_PARSED = (SyntaxError, ValueError, RecursionError, MemoryError)


class NamedCall(NamedTuple):
    """The name of a callable and its arguments."""

    name: str  # module:callable
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


def parse_call(text: str) -> NamedCall:
    """Parse `module:callable` or `module:callable(1, key="value")`; ConfigError."""
    match = _CALL.fullmatch(text.strip())
    if match is None or len(text) > _LONGEST:
        raise ConfigError(
            f"{text[:80]!r} does not name a callable; write it like my_module:my_function or"
            " my_module:my_function(size=4)"
        )
    if not match[2]:
        return NamedCall(match[1])
    try:
        call = ast.parse(f"call{match[2]}", mode="eval").body
    except _NOT_PARSED as error:
        raise ConfigError(
            f"{text!r} can't be read: {error}; write arguments as in (4, key='value')"
        ) from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):  # such as (1)(2)
        raise ConfigError(f"{text!r} can't be read; write one pair of parentheses, as in (4, key='value')")
    args = tuple(_read_literal(text, arg) for arg in call.args)
    kwargs: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ConfigError(f"{text!r}: ** is not supported; write key=value")
        kwargs[keyword.arg] = _read_literal(text, keyword.value)
    return NamedCall(match[1], args, kwargs)


def split_short(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Split `name:1,word` into the name and its arguments; None if the text has another form."""
    match = _SHORT.fullmatch(text.strip())
    if match is None or len(text) > _LONGEST:
        return None
    parts = match[2].split(",") if match[2] else []
    return match[1], tuple(part.strip() for part in parts)


def check_wrapper(text: str) -> str:
    """Return the text of a wrapper without surrounding blanks; ConfigError if it is not one."""
    if split_short(text) is None:
        parse_call(text)
    return text.strip()


def split_wrappers(value: Any) -> Any:
    """Split one text into a list at commas, as in `a:b,c:d`; text with parentheses is one wrapper."""
    if not isinstance(value, str):
        return value
    return [value] if "(" in value else [part for part in _NEXT.split(value) if part.strip()]


def _read_literal(text: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except _NOT_PARSED as error:
        shown = ast.unparse(node)
        raise ConfigError(
            f"{text!r}: the argument {shown} is not a literal (a number, a quoted string, True, None, or a"
            " list, tuple or dict of them); compute other values in your own function"
        ) from error
