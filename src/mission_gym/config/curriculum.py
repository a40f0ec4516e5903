"""Curricula: the stages of a training, as a YAML file says them, or a mapping of the same form.

    name: bots                     # default: the file's stem
    earlier: 0.2                   # share of episodes that are of earlier stages; default 0
    stages:
      - {kwargs: {num_bots: 10}, until: {steps: 100k}}
      - {name: crowd, kwargs: {num_bots: 25}, until: {metric: "victory>=0.8", episodes: 200}}
      - {options: {map: 3}, back: {metric: "victory<0.2", episodes: 200}}

In: a shipped name, a file or a mapping. Out: a Curriculum, or one ConfigError with every problem, each with
file, line and the nearest name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from mission_gym.config.comparisons import Comparison, parse_comparison
from mission_gym.config.plain import to_plain
from mission_gym.config.sizes import parse_count
from mission_gym.config.types import TypeText, value_error
from mission_gym.config.yaml_lines import Key, Tree, read_tree
from mission_gym.errors import ConfigError, UsageError, nearest

LAST = "last"
_SHIPPED = Path(__file__).with_name("curricula")
_TOP = ("name", "earlier", "stages")
_STAGE = ("name", "kwargs", "options", "until", "back")
_UNTIL = ("steps", "metric", "episodes")
_BACK = ("metric", "episodes")
_EPISODES = 100
_LABEL_CHARS = 32
_MAX_STAGES = 1000


class _Plain(BaseModel):
    """What is stored of these: only what says something."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_serializer(mode="wrap")
    def _leave_out(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value not in (None, "", {}, 0.0)}


class Rule(_Plain):
    """When a stage is left: so many steps after it began, or when a mean over its last episodes holds."""

    steps: int | None = None
    metric: str | None = None
    episodes: int | None = None  # of the mean

    @property
    def comparison(self) -> Comparison | None:
        """The comparison of the metric, where there is one."""
        return None if self.metric is None else parse_comparison(self.metric)

    def __str__(self) -> str:
        rule = self.comparison
        parts = [] if self.steps is None else [f"{self.steps:,} steps"]
        if rule is not None:
            parts.insert(0, f"{rule.name} {rule.op} {rule.number:g} over {self.episodes} episodes")
        return " or ".join(parts)


class Stage(_Plain):
    """What the episodes of a stage are made of, and when it is left."""

    name: str = ""
    kwargs: dict[str, Any] = {}  # of the environment, beside those of all stages
    options: dict[str, Any] = {}  # of each reset
    until: Rule | None = None  # then comes the next stage
    back: Rule | None = None  # then the stage before comes again


class Curriculum(_Plain):
    """Stages in their order. An episode keeps the stage it began in."""

    name: str = ""
    earlier: float = 0.0  # share of episodes of earlier stages, which are equally likely
    stages: tuple[Stage, ...]
    _places: tuple[str, ...] = PrivateAttr(())  # where each stage is written, while that is known

    @property
    def labels(self) -> list[str]:
        """What each stage is called: its name, or what it sets."""
        return [_label(stage, number) for number, stage in enumerate(self.stages, 1)]

    def place(self, stage: int) -> str:
        """Where a stage is written, for messages."""
        return self._places[stage] if self._places else f"curriculum {self.name}".rstrip()

    def find(self, text: str) -> int | None:
        """The stage that `last`, a number from 1 on, or a label means; None if there is none."""
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
    told = ", ".join(f"{key}={value}" for key, value in {**stage.kwargs, **stage.options}.items())
    text = stage.name or told or f"stage {number}"
    return text if len(text) <= _LABEL_CHARS or stage.name else f"{text[: _LABEL_CHARS - 3]}..."


@cache
def list_shipped() -> dict[str, Path]:
    """The shipped curricula by name."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.yaml"))}


def read_curriculum(value: Any) -> Curriculum | None:
    """The curriculum that a config's value means: a shipped name, a file or a mapping; None for none."""
    if value is None or value is False or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    if isinstance(value, Curriculum):
        return value
    if isinstance(value, Mapping):
        try:
            return _read(Tree(to_plain(value)), "")
        except ValueError as error:  # an array, say
            raise ConfigError(f"{error}") from error
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{value!r} is not a curriculum; give a name, a file or a mapping with `stages`")
    path = _find_file(str(value))
    return _read(read_tree(path), path.stem)


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


def _read(tree: Tree, name: str) -> Curriculum:
    reader = _Reader(tree)
    made = None if reader.problems else reader.read(name)
    if made is None or reader.problems:
        raise ConfigError(list(dict.fromkeys(reader.problems)))
    return made


class _Reader:
    """One reading; problems are collected on the way."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.problems = tree, list(tree.problems)

    def wrong(self, what: str, key: Key) -> None:
        place = self.tree.place(key)
        self.problems.append(f"{what} [{place}]" if place else what)

    def read(self, name: str) -> Curriculum | None:
        top = self.tree.value
        if not isinstance(top, dict):
            self.wrong("a curriculum is a mapping; write `stages:` and below it a list", ())
            return None
        self._check_keys(top, _TOP, (), "a curriculum")
        name = self._take(top, "name", str, "a text", ()) or name
        earlier = self._take(top, "earlier", (int, float), "a share from 0 to below 1", ()) or 0.0
        if not 0 <= earlier < 1:
            self.wrong(f"earlier={earlier:g} is not a share from 0 to below 1; correct it", ("earlier",))
        stages = top.get("stages")
        if not isinstance(stages, list) or not 0 < len(stages) <= _MAX_STAGES:
            self.wrong(
                f"a curriculum has a list of 1 to {_MAX_STAGES} stages; write `stages:` and below it"
                " `- kwargs: {...}`",
                ("stages",),
            )
            return None
        read = [self._read_stage(stage, number, len(stages)) for number, stage in enumerate(stages)]
        labels = [_label(stage, number) for number, stage in enumerate(read, 1)]
        for number, label in enumerate(labels):
            if label in labels[:number]:
                first = labels.index(label) + 1
                self.wrong(
                    f"stages {first} and {number + 1} are both {label!r}; give them names", ("stages", number)
                )
        if self.problems:
            return None
        made = Curriculum(name=name, earlier=float(earlier), stages=tuple(read))
        places = tuple(self.tree.place(("stages", number)) for number in range(len(stages)))
        made._places = places if all(places) else ()
        return made

    def _read_stage(self, stage: Any, number: int, count: int) -> Stage:
        at: Key = ("stages", number)
        whose = f"stage {number + 1}"
        if not isinstance(stage, dict):
            self.wrong(f"a stage is a mapping, not {stage!r}; write `- kwargs: {{...}}`", at)
            return Stage()
        self._check_keys(stage, _STAGE, at, whose)
        name = self._take(stage, "name", (str, int), "a text", at)
        if name is not None and (not str(name).strip() or str(name).isdigit() or name == LAST):
            self.wrong(
                f"name={name!r} does not fit: it is a number, empty or {LAST!r}; use a word", (*at, "name")
            )
        kwargs, options = (
            self._take(stage, key, dict, "a mapping", at) or {} for key in ("kwargs", "options")
        )
        for key in kwargs:
            if not isinstance(key, str):
                self.wrong(f"kwargs: {key!r} is not a name; quote it or correct it", (*at, "kwargs", key))
        until = self._read_rule(stage, "until", _UNTIL, at)
        back = self._read_rule(stage, "back", _BACK, at)
        is_last = number == count - 1
        if "until" in stage and is_last:
            self.wrong(
                f"{whose} is the last one and lasts to the end of the run; remove its until", (*at, "until")
            )
        if "until" not in stage and not is_last:
            self.wrong(
                f"{whose} has no until, and stages come behind it; add `until: {{steps: 100k}}` or"
                ' `until: {metric: "return>=100", episodes: 200}`',
                at,
            )
        if "back" in stage and number == 0:
            self.wrong(f"{whose} has no stage before it; remove its back", (*at, "back"))
        return Stage(name=str(name or ""), kwargs=kwargs, options=options, until=until, back=back)

    def _read_rule(self, stage: dict[Any, Any], kind: str, known: tuple[str, ...], above: Key) -> Rule | None:
        given = self._take(stage, kind, dict, f"a mapping with {' or '.join(known[:-1])}", above)
        at: Key = (*above, kind)
        if given is None:
            return None
        self._check_keys(given, known, at, kind)
        steps, episodes = (self._read_count(given, key, at) for key in ("steps", "episodes"))
        metric = self._take(given, "metric", str, "a text like captured>=0.8", at)
        if not given:
            self.wrong(f"{kind} says nothing; give {' or '.join(known[:-1])}", at)
        if metric is not None and parse_comparison(metric) is None:
            self.wrong(
                f"metric={metric!r} is not a comparison; write it like captured>=0.8 or return<-95",
                (*at, "metric"),
            )
        if metric is None and episodes is not None:
            self.wrong("episodes is the number that a metric is the mean of; add metric", (*at, "episodes"))
        return Rule(steps=steps, metric=metric, episodes=None if metric is None else episodes or _EPISODES)

    def _read_count(self, given: dict[Any, Any], key: str, above: Key) -> int | None:
        if key not in given:
            return None
        try:
            count = parse_count(given[key])
        except ConfigError as error:
            self.wrong(f"{key}: {error}", (*above, key))
            return None
        if count < 1:
            self.wrong(f"{key}={count} is below 1; correct it", (*above, key))
        return count

    def _take(self, given: dict[Any, Any], key: str, form: Any, what: str, above: Key) -> Any:
        """A value of a form, None where it is not there or not of it."""
        value = given.get(key)
        if key not in given or (isinstance(value, form) and not isinstance(value, bool)):
            return value
        self.wrong(f"{key}={value!r} is not {what}; correct it", (*above, key))
        return None

    def _check_keys(self, given: dict[Any, Any], known: tuple[str, ...], at: Key, whose: str) -> None:
        for key in given:
            if key not in known:
                hint = nearest(str(key), known)
                self.wrong(f"unknown key {key!r}{hint} in {whose}; it has {', '.join(known)}", (*at, key))


def find_stage(curriculum: Curriculum, text: str, where: str) -> int:
    """The stage that a text means; UsageError with the nearest name if there is none."""
    found = curriculum.find(text)
    if found is None:
        numbered = ", ".join(f"{number} ({label})" for number, label in enumerate(curriculum.labels, 1))
        hint = nearest(text, [*curriculum.labels, LAST])
        raise UsageError(f"eval_stage={text} is not a stage{hint}; use {LAST} or one of {numbered} [{where}]")
    return found


CurriculumField = Annotated[
    Curriculum | None, BeforeValidator(value_error(read_curriculum)), TypeText("NAME|FILE|none")
]
