"""Comparisons that a user writes: `captured>=0.8`, `return < -95`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import NamedTuple

_FORM = re.compile(
    r"\s*([^<>=]*[^<>=\s])\s*(>=|<=|>|<)\s*([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)\s*", re.IGNORECASE
)
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}


class Comparison(NamedTuple):
    """A comparison, taken apart."""

    name: str
    op: str
    number: float

    def holds(self, value: float) -> bool:
        """Tell whether a value satisfies it."""
        return _OPERATORS[self.op](value, self.number)


def parse_comparison(text: str) -> Comparison | None:
    """Take a comparison apart; None if it is not one."""
    match = _FORM.fullmatch(text)
    return None if match is None else Comparison(match[1], match[2], float(match[3]))
