"""The types of config fields, and the texts in which a user writes their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from numbers import Real
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mission_gym.config.calls import check_wrapper, split_wrappers
from mission_gym.config.plain import read_yaml, to_plain
from mission_gym.config.sizes import parse_count, parse_duration_s
from mission_gym.errors import ConfigError


def value_error(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give pydantic the error type that it collects."""

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
    """YAML takes `on` and `off` for booleans."""
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
    """The bound of a count that may also be `auto`, which pydantic's own `ge` can't be given."""
    if value == 0:
        raise ValueError("0 is below 1; use 1 or more, or auto")
    return value


def _items(value: Any) -> Any:
    """Split text at commas, and take a single number as a list of one."""
    if isinstance(value, str):
        return [part for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int) else value


def split_names(value: Any) -> Any:
    """Names between commas, spaces or both, as flags and files give them."""
    items = value if isinstance(value, list | tuple) else [value]
    return [part.strip() for item in items for part in str(item).split(",") if part.strip()]


def _importable(text: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise ValueError(f"{text!r} does not name a callable; write it like my_module:my_function")
    return text


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", text):
        raise ValueError(f"{text!r} is not a device; use auto, cpu, mps, cuda, or cuda:1 for the second card")
    return text


def _run_name(text: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", text, re.ASCII) or text == "latest":
        raise ValueError(
            f"{text!r} can't name a run; use letters, digits, '.', '_' and '-', and not the word 'latest'"
        )
    return text


def _env_kwargs(value: Any) -> Any:
    """Turn `["size=5", ...]`, with YAML scalars as values, into a mapping; pass mappings on."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple):
        pairs = [str(item).partition("=") for item in value]
        wrong = [key for key, equals, _ in pairs if not (key and equals)]
        if wrong:
            raise ConfigError(f"{wrong[0]!r} is not key=value; write it like size=5")
        value = {key: read_yaml(text, f"--env-kwargs {key}") for key, _, text in pairs}
    return to_plain(value)


NONE = BeforeValidator(_none_word)
Whole = Annotated[int, BeforeValidator(value_error(parse_count))]
WholeOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]
FromOneOrAuto = Annotated[WholeOrAuto, AfterValidator(_from_one)]
SWITCH = BeforeValidator(_switch)
Number = Annotated[float, BeforeValidator(_number)]
Duration = Annotated[float, BeforeValidator(value_error(parse_duration_s))]
LayerSizes = Annotated[tuple[Annotated[Whole, Field(ge=1)], ...], BeforeValidator(_items)]
Kwargs = Annotated[dict[str, Any], BeforeValidator(value_error(_env_kwargs))]
Names = Annotated[tuple[str, ...], BeforeValidator(split_names)]
Importable = Annotated[str, AfterValidator(_importable)]
Wrapper = Annotated[str, AfterValidator(value_error(check_wrapper))]
Wrappers = Annotated[tuple[Wrapper, ...], BeforeValidator(split_wrappers)]
RunName = Annotated[str, AfterValidator(_run_name)]


class TypeText:
    """Says what a flag takes, where its type does not."""

    def __init__(self, text: str) -> None:
        self.text = text


Device = Annotated[str, AfterValidator(_device), TypeText("auto|cpu|cuda|cuda:N|mps")]


class OneOf:
    """Marks a field whose values are the names of a table, which the schema is given, and some others."""

    def __init__(self, table: str, *others: str) -> None:
        self.table, self.others = table, others


class Section(BaseModel):
    """What every section of the config shares."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)
