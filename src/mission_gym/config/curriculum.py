"""Curricula: the stages of a training, from a YAML file or a mapping of the same form.

    name: bots                     # default: the file's stem
    earlier: 0.2                   # share of episodes from earlier stages; default 0
    stages:
      - {kwargs: {num_bots: 10}, until: {steps: 100k}}
      - {name: crowd, kwargs: {num_bots: 25}, until: {metric: "victory>=0.8", episodes: 200}}
      - {options: {map: 3}, back: {metric: "victory<0.2", episodes: 200}}

`read_curriculum` returns a Curriculum, or raises one ConfigError with all problems by file and line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from mission_gym.config.plain_yaml import Key, YamlTree, check_tree, read_tree, to_plain
from mission_gym.config.types import Comparison, TypeText, Whole, parse_comparison, value_error
from mission_gym.errors import ConfigError, UsageError, nearest

LAST = "last"
_SHIPPED = Path(__file__).with_name("curricula")
_EPISODES = 100
_LABEL_CHARS = 32
_MAX_STAGES = 1000


def _check_metric(text: str) -> str:
    if parse_comparison(text) is None:
        raise ValueError(f"{text!r} is not a comparison; write it like captured>=0.8 or return<-95")
    return text


def _check_name(text: str) -> str:
    if text.isdigit() or text == LAST or (text and not text.strip()):
        raise ValueError(f"{text!r} can't name a stage: it is a number, blank or {LAST!r}; use a word")
    return text


Count = Annotated[Whole, Field(ge=1)]


class _CurriculumModel(BaseModel):
    """Stores only fields that have a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    @model_serializer(mode="wrap")
    def _leave_out(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value not in (None, "", {}, 0.0)}


class Rule(_CurriculumModel):
    """When a stage ends: after this many steps, or when the mean of a metric satisfies a comparison."""

    steps: Count | None = None
    metric: Annotated[str, AfterValidator(_check_metric)] | None = None
    episodes: Count | None = None  # of the mean

    @property
    def comparison(self) -> Comparison | None:
        """The parsed metric, if there is one."""
        return None if self.metric is None else parse_comparison(self.metric)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if not given:
            raise ValueError("the rule is empty; give steps or metric")
        if "metric" not in given and "episodes" in given:
            raise ValueError("episodes is the number of episodes in a metric's mean; add metric")
        return {"episodes": _EPISODES, **given} if "metric" in given else given

    def __str__(self) -> str:
        rule = self.comparison
        parts = [] if self.steps is None else [f"{self.steps:,} steps"]
        if rule is not None:
            parts.insert(0, f"{rule.name} {rule.op} {rule.number:g} over {self.episodes} episodes")
        return " or ".join(parts)


class Stage(_CurriculumModel):
    """One stage: the arguments of its episodes, and when the run leaves it."""

    name: Annotated[str, AfterValidator(_check_name)] = ""
    kwargs: dict[str, Any] = {}  # of the environment, added to those of all stages
    options: dict[str, Any] = {}  # of each reset
    until: Rule | None = None  # the next stage follows
    back: Rule | None = None  # the stage before follows; by metric only


class Curriculum(_CurriculumModel):
    """Stages in order. An episode keeps the stage that it started in."""

    name: str = ""
    earlier: float = Field(0.0, ge=0, lt=1)  # share of episodes from earlier stages, all equally likely
    stages: tuple[Stage, ...] = Field(min_length=1, max_length=_MAX_STAGES)
    _locations: tuple[str, ...] = PrivateAttr(())  # the location of each stage, if it was read from a file

    @property
    def labels(self) -> list[str]:
        """What each stage is called: its name, or else its arguments."""
        return [_label(stage, number) for number, stage in enumerate(self.stages, 1)]

    def location(self, stage: int) -> str:
        """The location of a stage, for messages."""
        return self._locations[stage] if self._locations else f"curriculum {self.name}".rstrip()

    def find(self, text: str) -> int | None:
        """The index of the stage that `last`, a number from 1 or a label names; None if there is none."""
        if text == LAST:
            return len(self.stages) - 1
        if text.isascii() and text.isdigit():
            number = int(text) - 1 if len(text) < 10 else -1
            return number if 0 <= number < len(self.stages) else None
        return self.labels.index(text) if text in self.labels else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curriculum) and self.model_dump() == other.model_dump()

    def __str__(self) -> str:
        return f"{self.name or 'stages'} ({' -> '.join(self.labels)})"


def _label(stage: Stage, number: int) -> str:
    arguments = ", ".join(f"{key}={value}" for key, value in {**stage.kwargs, **stage.options}.items())
    text = stage.name or arguments or f"stage {number}"
    return text if len(text) <= _LABEL_CHARS or stage.name else f"{text[: _LABEL_CHARS - 3]}..."


@cache
def list_shipped() -> dict[str, Path]:
    """The shipped curricula by name."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.yaml"))}


def read_curriculum(value: Any) -> Curriculum | None:
    """Read a shipped name, a file or a mapping; None for `none`. Raises ConfigError."""
    if value is None or value is False or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    if isinstance(value, Curriculum):
        return value
    if isinstance(value, Mapping):
        try:
            return _check(YamlTree(to_plain(value)), "")
        except ValueError as error:  # a value that YAML can't hold, such as an array
            raise ConfigError(f"{error}") from error
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{value!r} is not a curriculum; give a name, a file or a mapping with `stages`")
    path = _find_file(str(value))
    return _check(read_tree(path), path.stem)


def _find_file(text: str) -> Path:
    shipped = list_shipped()
    if text in shipped:
        return shipped[text]
    path = Path(text)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    hint = nearest(text, shipped)
    if Path(f"{text}.yaml").is_file():
        hint = f" (did you mean the file {text}.yaml?)"
    raise ConfigError(
        f"{text!r} is neither a shipped curriculum nor a file{hint}; shipped: {', '.join(shipped)}; a file"
        " ends in .yaml"
    )


def _check(tree: YamlTree, name: str) -> Curriculum:
    problems = list(tree.problems)
    read: Curriculum | None = None if problems else check_tree(Curriculum, tree, problems)
    if read is None:
        raise ConfigError(list(dict.fromkeys(problems)))
    for key, problem in _find_problems(read):
        location = tree.location(("stages", *key))
        problems.append(f"{problem} [{location}]" if location else problem)
    if problems:
        raise ConfigError(problems)
    made = read if read.name else read.model_copy(update={"name": name})
    locations = tuple(tree.location(("stages", number)) for number in range(len(made.stages)))
    made._locations = locations if all(locations) else ()
    return made


def _find_problems(curriculum: Curriculum) -> Iterator[tuple[Key, str]]:
    """What is wrong with the order of the stages, each with the key of the stage or rule."""
    labels, last = curriculum.labels, len(curriculum.stages) - 1
    for number, (stage, label) in enumerate(zip(curriculum.stages, labels, strict=True)):
        name = f"stage {number + 1}"
        if stage.until is not None and number == last:
            yield (number, "until"), f"{name} is the last one and lasts until the run ends; remove its until"
        if stage.until is None and number < last:
            yield (
                (number,),
                f"{name} has no until, and stages follow it; add `until: {{steps: 100k}}` or"
                ' `until: {metric: "return>=100", episodes: 200}`',
            )
        if stage.back is not None and number == 0:
            yield (number, "back"), f"{name} has no stage before it; remove its back"
        if stage.back is not None and stage.back.steps is not None:
            yield (number, "back", "steps"), f"back of {name} can't count steps; give a metric"
        if label in labels[:number]:
            first = labels.index(label) + 1
            yield (number,), f"stages {first} and {number + 1} are both {label!r}; give them names"


def find_stage(curriculum: Curriculum, text: str, where: str) -> int:
    """The index of the stage that a text names; UsageError with the nearest name if there is none."""
    found = curriculum.find(text)
    if found is None:
        numbered = ", ".join(f"{number} ({label})" for number, label in enumerate(curriculum.labels, 1))
        hint = nearest(text, [*curriculum.labels, LAST])
        raise UsageError(f"eval_stage={text} is not a stage{hint}; use {LAST} or one of {numbered} [{where}]")
    return found


CurriculumField = Annotated[
    Curriculum | None, BeforeValidator(value_error(read_curriculum)), TypeText("NAME|FILE|none")
]
