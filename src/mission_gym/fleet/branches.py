"""Which variant of a job file branches from which: checked, put in order, and laid out seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from mission_gym.config.plain_yaml import Key
from mission_gym.errors import nearest
from mission_gym.fleet.drafts import Draft, Variant, inherit, name_member
from mission_gym.store.groups import Point

Variants = Mapping[str, Variant]
Wrong = Callable[[str, Key], None]  # takes a problem, and where in the file it is


def link_branches(variants: Variants, wrong: Wrong) -> None:
    """Check what branches name; seeds come from the parent where the child has none."""
    for variant in variants.values():
        if variant.branch is not None:
            _check_branch(variant, variant.branch, variants, wrong)
    for name, variant in variants.items():
        above = [each.name for each in _climb(variant, variants)]
        if name in above:
            wrong(f"branches go in a circle: {' <- '.join([name, *above])}; break it", variant.key)
            return
    for variant in sort_parents_first(variants):
        parent = _find_parent(variant, variants)
        if parent is None:
            continue
        if variant.seeds == (None,):
            variant.seeds = parent.seeds
        missing = [seed for seed in variant.seeds if parent.seeds != (None,) and seed not in parent.seeds]
        if missing:
            wrong(
                f"job {variant.name!r} has seed {missing[0]}, and its parent {parent.name!r} has not;"
                " seed k branches from seed k; give both the same seeds",
                variant.key,
            )


def _check_branch(variant: Variant, branch: str, variants: Variants, wrong: Wrong) -> None:
    at: Key = (*variant.key, "branch")
    name, _, point = str(branch).partition("@")
    if name not in variants:
        wrong(f"branch: there is no job {name!r}{nearest(name, variants)}; name one of this file", at)
    elif point not in ("", "best", "last"):
        wrong(f"branch: {point!r} is not a checkpoint; write {name}@best or {name}@last", at)
    else:
        variant.branch = f"{name}@{point or 'best'}"


def _find_parent(variant: Variant, variants: Variants) -> Variant | None:
    return variants.get(str(variant.branch).partition("@")[0]) if variant.branch else None


def _climb(variant: Variant, variants: Variants) -> list[Variant]:
    """The parents of a variant, the nearest first; a circle is gone round once."""
    above: dict[str, Variant] = {}
    at = _find_parent(variant, variants)
    while at is not None and at.name not in above:
        above[at.name] = at
        at = _find_parent(at, variants)
    return list(above.values())


def sort_parents_first(variants: Variants) -> list[Variant]:
    """All variants, parents before their children, else in their order."""
    ordered: dict[str, Variant] = {}
    for variant in variants.values():
        for each in (*reversed(_climb(variant, variants)), variant):
            ordered.setdefault(each.name, each)
    return list(ordered.values())


def gather_values(variant: Variant, variants: Variants) -> dict[str, Any]:
    """The values of a variant with those that it has from its parents."""
    values: dict[str, Any] = {}
    for each in (*[above for above in reversed(_climb(variant, variants)) if above is not variant], variant):
        values = inherit(values, each.values)
    return values


def make_drafts(variants: Variants) -> Iterator[Draft]:
    """One draft for each variant and seed, parents before their children."""
    for variant in sort_parents_first(variants):
        parent = _find_parent(variant, variants)
        plain = Draft(
            variant.name, variant.name, variant.values, priority=variant.priority, retries=variant.retries
        )
        for seed in variant.seeds:
            draft = replace(plain, seed=seed, name=name_member(variant.name, seed))
            if parent is not None:
                above = parent.name if parent.seeds == (None,) else name_member(parent.name, seed)
                point = cast(Point, str(variant.branch).partition("@")[2])
                draft = replace(draft, parent=above, point=point)
            yield draft
