"""The searched fields and their ranges: those of the schema, or `--over learning_rate=1e-5..1e-2`.

The study stores values as they are trained with. The sampler draws on its own scale: powers of two by their
exponent, a discount by its distance to 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules
from mission_gym.config.schema import Scale
from mission_gym.errors import ConfigError, nearest
from mission_gym.report.formats import show_value
from mission_gym.store.sweeps import Axis, Value

_BETWEEN = re.compile(r",(?=\s*[A-Za-z_][\w.-]*\s*=)")  # between items; `64,64|256,256` is one item
_LOG_RATIO = 100.0  # high / low from which an unknown range gets a log scale
_DIGITS = 3  # of a drawn number
ALGO = "run.algo"
_FOR_SPEED = ("vector", "compute")


class SamplerRange(NamedTuple):
    """A range on the sampler's scale."""

    low: float
    high: float
    is_log: bool
    is_whole: bool


def list_axes(base: Resolved) -> list[Axis]:
    """The ranges of the schema, without the fields that the user gave."""
    algo = base.config.run.algo
    axes = []
    for name, span in base.config.algorithm.SEARCH.items():
        path = f"{algo}.{name}"
        if not base.explicit(path):
            ends = [base.with_values({path: end}, "schema").config.value(path) for end in span[:2]]
            axes.append(Axis(path=path, low=ends[0], high=ends[1], scale=span.scale))
    return axes


def read_axes(over: str, base: Resolved, problems: list[str]) -> list[Axis]:
    """The ranges of --over; their problems are added to the list."""
    algo = base.config.run.algo
    paths = base.schema.paths_of_names(algo)
    axes: dict[str, Axis] = {}
    for item in _BETWEEN.split(over):
        name, equals, text = (part.strip() for part in item.partition("="))
        name = name.replace("-", "_")
        path = paths.get(name)
        section = path.split(".")[0] if path else ""
        if path is None:
            problems.append(f"{name!r} is not a known field{nearest(name, paths)}; correct the name [--over]")
        elif path in axes:
            problems.append(f"{name} is given twice; keep one [--over]")
        elif path == ALGO:
            try:
                axes[path] = _read_choices(path, text.replace(",", "|"), base)
            except ConfigError as error:
                problems += error.problems
        elif section not in (algo, "policy"):
            why = "is chosen for speed" if section in _FOR_SPEED else "must be the same for all trials"
            problems.append(f"{name} can't be searched: it {why}; give it as a flag [--over]")
        elif not equals or not text:
            problems.append(f"{name} has no range; write {name}=low..high or {name}=a|b [--over]")
        else:
            try:
                axes[path] = (_read_choices if "|" in text else _read_range)(path, text, base)
            except ConfigError as error:
                problems += error.problems
    if ALGO in axes and (others := [each.name for path, each in axes.items() if path.startswith(f"{algo}.")]):
        problems.append(
            f"{', '.join(others)}: algorithms have their own fields, so none is searched with algo; search"
            " one of both [--over]"
        )
    return list(axes.values())


def _read_choices(path: str, text: str, base: Resolved) -> Axis:
    name = path.split(".")[1]
    values = _parse(path, [part.strip() for part in text.split("|")], base)
    choices = list(dict.fromkeys(make_choice(value) for value in values))
    if len(choices) < 2:
        raise ConfigError(f"{name}={text} is one choice; give two values or more [--over]")
    return Axis(path=path, choices=choices)


def _read_range(path: str, text: str, base: Resolved) -> Axis:
    name = path.split(".")[1]
    low_text, dots, high_text = text.partition("..")
    if not dots:
        raise ConfigError(f"{name}={text} is not a range; write {name}=low..high or {name}=a|b [--over]")
    if not low_text.strip() or not high_text.strip():
        raise ConfigError(f"{name}={text} lacks an end; write {name}=low..high [--over]")
    low, high = _parse(path, [low_text.strip(), high_text.strip()], base)
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)):
        raise ConfigError(f"{name}={text} is not a range of numbers; write its values as a|b [--over]")
    if low >= high:
        raise ConfigError(f"{name}={text} is empty: {low} is not below {high}; correct the ends [--over]")
    return Axis(path=path, low=low, high=high, scale=_find_scale(name, low, high, base))


def _parse(path: str, texts: Sequence[str], base: Resolved) -> list[Any]:
    """The values in the types of the schema; ConfigError with all problems."""
    values, problems = [], []
    for text in texts:
        try:
            values.append(base.with_values({path: text}, "--over").config.value(path))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return values


def _find_scale(name: str, low: float, high: float, base: Resolved) -> Scale:
    known = base.config.algorithm.SEARCH.get(name)
    if known is None:
        return "log" if low > 0 and high / low >= _LOG_RATIO else "linear"
    has_powers = low >= 1 and math.ceil(math.log2(low)) < math.floor(math.log2(high))
    fits = {"linear": True, "log": low > 0, "gap": high < 1, "power": has_powers}
    return known.scale if fits[known.scale] else "linear"


def make_choice(value: Any) -> Value:
    """A value as a choice: a scalar as it is, anything else as the text of its flag."""
    return value if isinstance(value, bool | int | float | str | None) else show_value(value)


def limit_rollouts(axes: Sequence[Axis], path: str, most: int, problems: list[str]) -> list[Axis]:
    """The axes, with `path` (the steps of an environment per rollout) limited to `most`."""
    found = []
    for axis in axes:
        if axis.path == path and not axis.choices and axis.high > most:
            if axis.low >= most:
                problems.append(
                    f"{axis.name}={axis.low}..{axis.high} makes rollouts that leave a trial too few updates;"
                    f" stay below {most}, or give more --timesteps [--over]"
                )
            axis = axis.model_copy(update={"high": max(most, axis.low)})
        found.append(axis)
    return [axis for axis in found if axis.choices or axis.low < axis.high]


def fit_values(base: Resolved, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a setting (by path) and all algorithm values that they change, by field name. Values that
    do not fit together are adapted like those of a preset. If that is impossible, the run will be refused,
    and its trial fails."""
    given = {path.split(".")[1]: value for path, value in values.items()}
    if ALGO in values:  # another section, whose own rules apply
        return given
    try:
        plain, fitted = apply_rules(base)[0].config, apply_rules(base.with_values(values, "sweep"))[0].config
    except ConfigError:
        return given
    own = {name: (getattr(plain.algorithm, name), value) for name, value in fitted.algorithm}
    return given | {name: value for name, (before, value) in own.items() if name in given or value != before}


def sampler_range(axis: Axis) -> SamplerRange:
    """The range that the sampler draws from."""
    if axis.scale == "power":
        return SamplerRange(math.ceil(math.log2(axis.low)), math.floor(math.log2(axis.high)), False, True)
    if axis.scale == "gap":
        return SamplerRange(1.0 - axis.high, 1.0 - axis.low, True, False)
    return SamplerRange(axis.low, axis.high, axis.scale == "log", axis.is_whole)


def to_sampler(axis: Axis, value: float) -> float:
    """A value on the sampler's scale, clipped to the range."""
    value = min(max(value, axis.low), axis.high)
    if axis.scale == "power":
        low, high, *_ = sampler_range(axis)
        return min(max(round(math.log2(value)), low), high)
    return 1.0 - value if axis.scale == "gap" else value


def from_sampler(axis: Axis, drawn: float) -> Value:
    """The value of a draw, with a few digits."""
    if axis.scale == "power":
        return int(2 ** round(drawn))
    if axis.is_whole:
        return round(drawn)
    number = float(f"{drawn:.{_DIGITS}g}")
    if axis.scale == "gap":
        number = float(f"{1.0 - number:.12g}")
    return min(max(number, float(axis.low)), float(axis.high))
