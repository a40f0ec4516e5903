"""The types of config fields, and the text forms that a user may write for their values."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from math import isfinite
from numbers import Real
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mission_gym.config.calls import check_wrapper, split_wrappers
from mission_gym.config.plain_yaml import read_yaml, to_plain
from mission_gym.config.sizes import parse_count, parse_duration_s
from mission_gym.errors import ConfigError

_COMPARISON = re.compile(
    r"\s*([^<>=]*[^<>=\s])\s*(>=|<=|>|<)\s*([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)\s*", re.IGNORECASE
)
_OPERATORS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


class Comparison(NamedTuple):
    """A comparison that a user wrote: `captured>=0.8`, `return < -95`."""

    name: str
    op: str
    number: float

    def holds(self, value: float) -> bool:
        """Whether the value satisfies the comparison."""
        return bool(_OPERATORS[self.op](value, self.number))


def parse_comparison(text: str) -> Comparison | None:
    """Parse a comparison; None if the text is not one."""
    match = _COMPARISON.fullmatch(text)
    return None if match is None else Comparison(match[1], match[2], float(match[3]))


def value_error(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Convert ConfigError to ValueError, which pydantic collects."""

    def parsed(value: Any) -> Any:
        try:
            return parse(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    return parsed


def _none_word(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() == "none" else value


def _count_or_auto(value: Any) -> Any:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return parse_count(value)
    except ConfigError as error:
        raise ValueError(f"{error}, or auto") from error


def _switch(value: Any) -> Any:
    """YAML reads `on` and `off` as booleans."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _number(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str | Real) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not isfinite(number):
        raise ValueError(f"{value!r} is not a finite number; write it like 0.5 or 3e-4")
    return number


def _from_one(value: int | str) -> int | str:
    """The lower bound of a count that may be `auto`; pydantic's `ge` does not accept text."""
    if value == 0:
        raise ValueError("0 is below 1; use 1 or more, or auto")
    return value


def _items(value: Any) -> Any:
    """Split text at commas; a single number becomes a list of one."""
    if isinstance(value, str):
        return [part for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int) else value


def split_names(value: Any) -> list[str]:
    """Split names at commas; flags and files may also give lists."""
    items = value if isinstance(value, list | tuple) else [value]
    return [part.strip() for item in items for part in str(item).split(",") if part.strip()]


def _importable(text: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise ValueError(f"{text!r} does not name a callable; write it like my_module:my_function")
    return text


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", text):
        raise ValueError(f"{text!r} is not a device; use auto, cpu, mps, cuda, or cuda:1 for the second GPU")
    return text


def _run_name(text: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", text, re.ASCII) or text == "latest":
        raise ValueError(
            f"{text!r} can't name a run; use letters, digits, '.', '_' and '-', and not the word 'latest'"
        )
    return text


def _env_kwargs(value: Any) -> Any:
    """Turn `["size=5", ...]`, with YAML scalars as values, into a mapping; mappings stay as they are."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple):
        pairs = [str(item).partition("=") for item in value]
        wrong = [key for key, equals, _ in pairs if not (key and equals)]
        if wrong:
            raise ConfigError(f"{wrong[0]!r} is not key=value; write it like size=5")
        value = {key: read_yaml(text, f"--env-kwargs {key}") for key, _, text in pairs}
    return to_plain(value)


def _positive_or_auto(value: Any) -> Any:
    """pydantic's `gt` does not accept text."""
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        number = _number(value)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from error
    if number <= 0:
        raise ValueError(f"{number:g} is not above 0; write a number like 0.5, or auto")
    return number


NONE = BeforeValidator(_none_word)
Whole = Annotated[int, BeforeValidator(value_error(parse_count))]
WholeOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]
FromOneOrAuto = Annotated[WholeOrAuto, AfterValidator(_from_one)]
SWITCH = BeforeValidator(_switch)
Number = Annotated[float, BeforeValidator(_number)]
PositiveOrAuto = Annotated[float | Literal["auto"], BeforeValidator(_positive_or_auto)]
Duration = Annotated[float, BeforeValidator(value_error(parse_duration_s))]
LayerSizes = Annotated[tuple[Annotated[Whole, Field(ge=1)], ...], BeforeValidator(_items)]
Kwargs = Annotated[dict[str, Any], BeforeValidator(value_error(_env_kwargs))]
Names = Annotated[tuple[str, ...], BeforeValidator(split_names)]
Importable = Annotated[str, AfterValidator(_importable)]
Wrapper = Annotated[str, AfterValidator(value_error(check_wrapper))]
Wrappers = Annotated[tuple[Wrapper, ...], BeforeValidator(split_wrappers)]
RunName = Annotated[str, AfterValidator(_run_name)]


class TypeText:
    """The type of a flag as help shows it, if the Python type does not say enough."""

    def __init__(self, text: str) -> None:
        self.text = text


Device = Annotated[str, AfterValidator(_device), TypeText("auto|cpu|cuda|cuda:N|mps")]


class OneOf:
    """Marks a field whose values are names of a table of `Schema`, or one of `others`."""

    def __init__(self, table: str, *others: str) -> None:
        self.table, self.others = table, others


class Section(BaseModel):
    """Base class of all config sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)
