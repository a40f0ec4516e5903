"""The runs that a job file asks for: variants (a job with one choice of its grid) and drafts (their runs).

A variant may branch from another variant. Branches are checked, ordered with parents first, and expanded seed
by seed: seed k branches from seed k of the parent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from mission_gym.config.plain_yaml import Key
from mission_gym.errors import UsageError, nearest
from mission_gym.store.groups import Point

ENV_ID = "env.env_id="  # how `branch --set` names another environment
_MOST_SEEDS = 1000
AddProblem = Callable[[str, Key], None]  # takes a problem, and its key in the file


class Needs(NamedTuple):
    """The resources that the flags of a job ask for."""

    cores: int = 1
    uses_gpu: bool = False


class Draft(NamedTuple):
    """One run that a file asks for."""

    name: str
    variant: str
    values: dict[str, Any]  # by flag name
    seed: int | None = None
    parent: str | None = None
    point: Point = "best"
    priority: int = 0
    retries: int = 1
    needs: Needs = Needs()


@dataclass
class JobVariant:
    """A job of the file with one choice of its grid, and its seeds."""

    name: str
    key: Key  # its place in the file
    values: dict[str, Any]
    seeds: tuple[int | None, ...]
    branch: str | None
    priority: int
    retries: int


Variants = Mapping[str, JobVariant]


def parse_seeds(given: object, first: int, source: str) -> tuple[int, ...]:
    """Seeds as a user writes them: `5` (from `first` on), `1..5` or `3,7,11`; UsageError with the source."""
    seeds: Sequence[int] | None = None
    is_text = isinstance(given, str) or type(given) is int
    text = re.sub(r"\s*(,|\.\.)\s*", r"\1", str(given).strip()) if is_text else ""
    if isinstance(given, list | tuple) and all(type(each) is int for each in given):
        seeds = list(given)
    elif re.fullmatch(r"-?\d{1,9}", text):
        seeds = range(first, first + int(text))
    elif span := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text):
        seeds = range(int(span[1]), int(span[2]) + 1)
    elif re.fullmatch(r"\d{1,18},(\d{1,18}(,\d{1,18})*,?)?", text):
        seeds = [int(part) for part in text.split(",") if part]
    if seeds is None:
        raise UsageError(f"seeds={given!r} can't be read; write 5, 1..5 or 3,7,11 [{source}]")
    if not seeds or len(seeds) > _MOST_SEEDS or min(seeds) < 0:
        raise UsageError(
            f"seeds={given!r} are {len(seeds)} seeds; use 1 to {_MOST_SEEDS}, each 0 or above [{source}]"
        )
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds={given!r} contain a seed twice; keep each once [{source}]")
    return tuple(seeds)


def name_variant(job: object, choice: Mapping[str, Any]) -> str:
    """The name of a job with one choice of its grid."""
    words = [str(job)]
    for flag, value in choice.items():
        text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(re.sub(r"[^A-Za-z0-9._]+", "-", f"{flag}-{text}").strip("-"))
    return "-".join(words)


def name_member(variant: str, seed: int | None) -> str:
    """The name of a variant's run with one of its seeds."""
    return variant if seed is None else f"{variant}-s{seed}"


def list_sets(values: Mapping[str, Any]) -> list[Any]:
    """The texts of `set`, which is a text or a list of texts."""
    given = values.get("set")
    return given if isinstance(given, list) else [] if given is None else [given]


def inherit(above: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a branch: its own on top of its parent's."""
    sets = [*list_sets(above), *list_sets(values)]
    found = {**above, **values} | ({"set": sets} if sets else {})
    if any(str(text).startswith(ENV_ID) for text in sets):
        found.pop("env", None)  # the branch has another environment
    return found


def link_branches(variants: Variants, add_problem: AddProblem) -> None:
    """Check the parents of branches; a child without seeds gets those of its parent."""
    for variant in variants.values():
        if variant.branch is not None:
            _check_branch(variant, variant.branch, variants, add_problem)
    for name, variant in variants.items():
        above = [each.name for each in _list_parents(variant, variants)]
        if name in above:
            chain = " <- ".join([name, *above])
            add_problem(f"the branches form a cycle: {chain}; remove one of them", variant.key)
            return
    for variant in sort_parents_first(variants):
        parent = _find_parent(variant, variants)
        if parent is None:
            continue
        if variant.seeds == (None,):
            variant.seeds = parent.seeds
        missing = [seed for seed in variant.seeds if parent.seeds != (None,) and seed not in parent.seeds]
        if missing:
            add_problem(
                f"job {variant.name!r} has seed {missing[0]}, but its parent {parent.name!r} does not; seed k"
                " branches from seed k; give both the same seeds",
                variant.key,
            )


def _check_branch(variant: JobVariant, branch: str, variants: Variants, add_problem: AddProblem) -> None:
    key: Key = (*variant.key, "branch")
    name, _, point = str(branch).partition("@")
    if name not in variants:
        add_problem(f"branch: there is no job {name!r}{nearest(name, variants)}; use one of this file", key)
    elif point not in ("", "best", "last"):
        add_problem(f"branch: {point!r} is not a checkpoint; write {name}@best or {name}@last", key)
    else:
        variant.branch = f"{name}@{point or 'best'}"


def _find_parent(variant: JobVariant, variants: Variants) -> JobVariant | None:
    return variants.get(str(variant.branch).partition("@")[0]) if variant.branch else None


def _list_parents(variant: JobVariant, variants: Variants) -> list[JobVariant]:
    """The ancestors of a variant, the nearest first; a cycle is followed once."""
    above: dict[str, JobVariant] = {}
    parent = _find_parent(variant, variants)
    while parent is not None and parent.name not in above:
        above[parent.name] = parent
        parent = _find_parent(parent, variants)
    return list(above.values())


def sort_parents_first(variants: Variants) -> list[JobVariant]:
    """All variants in the order of the file, except that parents come before their children."""
    ordered: dict[str, JobVariant] = {}
    for variant in variants.values():
        for each in (*reversed(_list_parents(variant, variants)), variant):
            ordered.setdefault(each.name, each)
    return list(ordered.values())


def gather_values(variant: JobVariant, variants: Variants) -> dict[str, Any]:
    """The values of a variant, including those of its ancestors."""
    values: dict[str, Any] = {}
    for each in reversed(_list_parents(variant, variants)):
        if each is not variant:  # as in a cycle, which is reported elsewhere
            values = inherit(values, each.values)
    return inherit(values, variant.values)


def make_drafts(variants: Variants) -> Iterator[Draft]:
    """One draft per variant and seed, parents before their children."""
    for variant in sort_parents_first(variants):
        parent = _find_parent(variant, variants)
        point = cast(Point, str(variant.branch).partition("@")[2]) if parent else "best"
        for seed in variant.seeds:
            above = None
            if parent is not None:
                above = parent.name if parent.seeds == (None,) else name_member(parent.name, seed)
            yield Draft(
                name_member(variant.name, seed), variant.name, variant.values, seed, above, point,
                variant.priority, variant.retries,
            )  # fmt: skip
