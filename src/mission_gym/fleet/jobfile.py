"""A job file -> drafts of jobs: defaults, grid and seeds laid out, and every problem told with its line.

    name: my-question        # default: the file's stem
    defaults: {env: CartPole-v1, timesteps: 200k}
    seeds: 3                 # for all; also 1..5 and [3, 7, 11]; in a job for that alone
    grid: {gamma: [0.98, 0.99]}
    jobs:
      - {name: base}
      - {name: wide, network_arch: [256, 256], priority: 1, retries: 2}
      - {name: longer, branch: base@best, timesteps: 400k}

Everything else is a flag of `train`, by its name in snake case; `env` is ENV.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, cast

from mission_gym.config.yaml_lines import Key, Tree, read_tree
from mission_gym.errors import ConfigError, UsageError, nearest
from mission_gym.fleet.seeds import parse_seeds
from mission_gym.store.groups import Point
from mission_gym.store.rundir import RUN_NAME

_TOP = ("name", "defaults", "grid", "seeds", "jobs")
_OWN = ("name", "branch", "priority", "retries", "grid", "seeds")
_NOT_FOR_JOBS = {
    "run_name": "runs are named after their job; use name",
    "runs_dir": "a group's runs lie in one folder; write it into defaults, or use --runs-dir",
}
_FLAG = re.compile(r" ?\[(?:flag )?--(?:no-)?([a-z][a-z-]*)[^\]]*\]$")
_ENV_ID = "env.env_id="  # how `branch --set` names another environment
_NUM_MEMBERS = 1000
_NAME_CHARS = 200  # of a run, its group in front; its folder adds the time

# From the values of a job to its problems, each with the flag that it is about in brackets at its end.
Check = Callable[[Mapping[str, Any]], list[str]]


@dataclass(frozen=True, slots=True)
class Draft:
    """One run that a file asks for."""

    name: str
    variant: str
    values: dict[str, Any]  # by the names of flags
    seed: int | None = None
    parent: str | None = None
    point: Point = "best"
    priority: int = 0
    retries: int = 1


@dataclass(frozen=True, slots=True)
class JobFile:
    """What a file asks for."""

    name: str
    drafts: tuple[Draft, ...]
    runs_dir: str | None = None


@dataclass
class _Variant:
    """A job of the file with one choice of its grid, and the seeds that it is run with."""

    name: str
    key: Key  # where it stands in the file
    values: dict[str, Any]
    seeds: tuple[int | None, ...]
    branch: str | None
    priority: int
    retries: int
    children: list[str] = field(default_factory=list)


def read_job_file(path: Path, flags: Collection[str], check: Check) -> JobFile:
    """Read a file; ConfigError with everything that is wrong in it. flags: the names that `train` has."""
    tree = read_tree(path)
    name = str(tree.value.get("name", path.stem)) if isinstance(tree.value, dict) else path.stem
    reader = _Reader(tree, name, flags, list(tree.problems))
    if not reader.problems:
        reader.read(check)
    if reader.problems:
        raise ConfigError(list(dict.fromkeys(reader.problems)))
    runs_dir = (tree.value.get("defaults") or {}).get("runs_dir")
    return JobFile(name, tuple(reader.drafts()), None if runs_dir is None else str(runs_dir))


class _Reader:
    """One reading; problems are collected on the way."""

    def __init__(self, tree: Tree, name: str, flags: Collection[str], problems: list[str]) -> None:
        self.tree, self.name, self.flags, self.problems = tree, name, flags, problems
        self.variants: dict[str, _Variant] = {}

    def wrong(self, what: str, key: Key) -> None:
        self.problems.append(f"{what} [{self.tree.place(key)}]")

    def read(self, check: Check) -> None:
        top = self.tree.value
        if not isinstance(top, dict):
            return self.wrong("the file must be a mapping; write `jobs:` and below it a list", ())
        for key in top:
            if key not in _TOP:
                hint = nearest(str(key), _TOP)
                if key in self.flags or key == "env":
                    hint = "; write it below `defaults:`"
                self.wrong(f"{key!r} is not a key of a job file{hint}; it has {', '.join(_TOP)}", (key,))
        self._check_name(top.get("name", "x"), ("name",))
        defaults = self._read_mapping(top, "defaults", ())
        jobs = top.get("jobs")
        if not isinstance(jobs, list) or not jobs:
            return self.wrong("the file asks for no job; write a list of them below `jobs:`", ("jobs",))
        if len(jobs) > _NUM_MEMBERS:
            return self.wrong(f"the file has {len(jobs)} jobs; the most is {_NUM_MEMBERS}", ("jobs",))
        for key in defaults:
            self._check_key(key, ("defaults", key), "defaults")
        for number, job in enumerate(jobs):
            self._read_job(job, ("jobs", number), top, defaults)
        self._find_parents()
        for variant in self.variants.values():
            self._check_values(variant, check)
        num_members = sum(len(variant.seeds) for variant in self.variants.values())
        if num_members > _NUM_MEMBERS:
            self.wrong(f"the file asks for {num_members} runs; the most is {_NUM_MEMBERS}", ())
        self._check_members()
        return None

    def _check_members(self) -> None:
        """Seeds add to names: `base` with seed 0 is the run of a job `base-s0`."""
        found: dict[str, _Variant] = {}
        most = _NAME_CHARS - len(f"{self.name}-")
        if most < 1:
            return self.wrong(
                f"the group's name has more than {_NAME_CHARS - 2} characters; shorten it", ("name",)
            )
        for variant in self.variants.values():
            for name in (_member(variant.name, seed) for seed in variant.seeds):
                if name in found:
                    first = self.tree.place(found[name].key)
                    self.wrong(f"run {name!r} is there twice, first of {first}; rename one", variant.key)
                if len(name) > most:
                    self.wrong(
                        f"the name of run {name[:40]!r}... is longer than {most}; shorten it", variant.key
                    )
                found.setdefault(name, variant)
        return None

    def _read_job(self, job: Any, at: Key, top: dict[str, Any], defaults: dict[str, Any]) -> None:
        if not isinstance(job, dict):
            return self.wrong(f"a job is a mapping, not {job!r}; write `- name: ...`", at)
        name = job.get("name")
        if name is None:
            return self.wrong("a job has no name; add `name:`", at)
        if not self._check_name(name, (*at, "name")):
            return None
        for key in job:
            self._check_key(key, (*at, key), f"job {name!r}")
        settings = {"grid": top.get("grid"), "seeds": top.get("seeds")} | defaults | job
        priority, retries = (
            self._read_count(settings, key, least, at)
            for key, least in (("priority", -(10**6)), ("retries", 0))
        )
        values = {key: value for key, value in (defaults | job).items() if key not in _OWN}
        values.pop("runs_dir", None)
        branch = job.get("branch")
        if branch is not None:
            values = self._fit_branch(job, values, at)
        for choice in self._read_grid(settings.get("grid"), name, at):
            variant = "-".join([str(name), *(_tell_choice(*item) for item in choice.items())])
            if variant in self.variants:
                first = self.tree.place((*self.variants[variant].key, "name"))
                self.wrong(f"job {variant!r} is there twice, first in {first}; rename one", (*at, "name"))
                continue
            seeds = self._read_seeds(settings, values | choice, at)
            retries = 1 if retries is None else retries
            self.variants[variant] = _Variant(
                variant, at, values | choice, seeds, branch, priority or 0, retries
            )
        return None

    def _fit_branch(self, job: dict[str, Any], values: dict[str, Any], at: Key) -> dict[str, Any]:
        """The values as `branch` takes them: the environment is the parent's unless the job names another."""
        if values.get("subproc"):
            self.wrong("subproc is not for a branch; write `vector: workers`", (*at, "subproc"))
        sets = [*_list_sets(values), *([f"{_ENV_ID}{job['env']}"] if "env" in job else [])]
        kept = {key: value for key, value in values.items() if key not in ("env", "set")}
        return kept | ({"set": sets} if sets else {})

    def _check_name(self, name: Any, at: Key) -> bool:
        if isinstance(name, str | int) and RUN_NAME.fullmatch(str(name)) and str(name) != "latest":
            return True
        self.wrong(f"name={name!r} does not fit; use letters, digits, '_', '-' and '.'", at)
        return False

    def _check_key(self, key: Any, at: Key, where: str) -> None:
        if key in _NOT_FOR_JOBS and not (key == "runs_dir" and where == "defaults"):
            self.wrong(f"{key} is not for {where}: {_NOT_FOR_JOBS[key]}", at)
        elif where == "defaults" and key in ("name", "branch"):
            self.wrong(f"{key} is for one job; write it there", at)
        elif key not in (*_OWN, "env", "runs_dir") and key not in self.flags:
            known = [*_OWN, "env", *self.flags]
            self.wrong(f"unknown key {key!r}{nearest(str(key), known)} in {where}; correct its name", at)

    def _read_mapping(self, above: dict[str, Any], key: str, at: Key) -> dict[str, Any]:
        value = above.get(key)
        if value is not None and not isinstance(value, dict):
            self.wrong(f"{key} must be a mapping, not {value!r}; write names and values below it", (*at, key))
        return value if isinstance(value, dict) else {}

    def _read_count(self, settings: dict[str, Any], key: str, least: int, at: Key) -> int | None:
        value = settings.get(key)
        if value is not None and (type(value) is not int or value < least):
            self.wrong(f"{key}={value!r} is not a whole number from {least} on; correct it", (*at, key))
            return None
        return value

    def _read_grid(self, grid: Any, name: Any, at: Key) -> Iterator[dict[str, Any]]:
        """Every choice of a grid; one empty choice without one."""
        place: Key = (*at, "grid") if (*at, "grid") in self.tree.places else ("grid",)
        if grid is None:
            yield {}
            return
        lists = grid.values() if isinstance(grid, dict) else []
        if not isinstance(grid, dict) or not all(isinstance(each, list) and each for each in lists):
            self.wrong("grid must hold a list of values for each flag, like `gamma: [0.98, 0.99]`", place)
            return
        for key in grid:
            if key in _OWN or key == "runs_dir":
                self.wrong(f"{key} can't be part of a grid; remove it there", (*place, key))
            else:
                self._check_key(key, (*place, key), f"the grid of job {name!r}")
        if prod(len(each) for each in lists) > _NUM_MEMBERS:
            self.wrong(f"the grid has more than {_NUM_MEMBERS} combinations; make it smaller", place)
            return
        for choice in itertools.product(*grid.values()):
            yield dict(zip(grid, choice, strict=True))

    def _read_seeds(
        self, settings: dict[str, Any], values: dict[str, Any], at: Key
    ) -> tuple[int | None, ...]:
        given = settings.get("seeds")
        if given is None:
            return (None,)
        place: Key = next(
            key for key in ((*at, "seeds"), ("defaults", "seeds"), ("seeds",)) if key in self.tree.places
        )
        first = values.get("seed", 0)
        try:
            return parse_seeds(given, first if type(first) is int else 0, self.tree.place(place))
        except UsageError as error:
            self.problems.append(str(error))
            return (None,)

    def _find_parents(self) -> None:
        """Check what branches name; seeds come from the parent where the child has none."""
        for variant in self.variants.values():
            if variant.branch is None:
                continue
            at: Key = (*variant.key, "branch")
            name, _, point = str(variant.branch).partition("@")
            if name not in self.variants:
                hint = nearest(name, self.variants)
                self.wrong(f"branch: there is no job {name!r}{hint}; name one of this file", at)
            elif point not in ("", "best", "last"):
                self.wrong(f"branch: {point!r} is not a checkpoint; write {name}@best or {name}@last", at)
            else:
                variant.branch = f"{name}@{point or 'best'}"
                self.variants[name].children.append(variant.name)
        for name in self.variants:
            if name in self._descend(name):
                chain = " <- ".join([name, *self._trace(name)])
                return self.wrong(f"branches go in a circle: {chain}; break it", self.variants[name].key)
        for variant in self._in_order():
            parent = self._parent_of(variant)
            if parent is None:
                continue
            if variant.seeds == (None,):
                variant.seeds = parent.seeds
            missing = [seed for seed in variant.seeds if parent.seeds != (None,) and seed not in parent.seeds]
            if missing:
                self.wrong(
                    f"job {variant.name!r} has seed {missing[0]}, and its parent {parent.name!r} has not;"
                    " seed k branches from seed k; give both the same seeds",
                    variant.key,
                )
        return None

    def _parent_of(self, variant: _Variant) -> _Variant | None:
        return self.variants.get(str(variant.branch).partition("@")[0]) if variant.branch else None

    def _descend(self, name: str) -> set[str]:
        found: set[str] = set()
        left = list(self.variants[name].children)
        while left:
            child = left.pop()
            if child not in found:
                found.add(child)
                left += self.variants[child].children
        return found

    def _trace(self, name: str) -> list[str]:
        chain: list[str] = []
        at = name
        while not chain or chain[-1] != name:
            parent = self._parent_of(self.variants[at])
            assert parent is not None, "a circle has no beginning"
            at = parent.name
            chain.append(at)
        return chain

    def _in_order(self) -> list[_Variant]:
        """Parents before their children."""
        ordered: dict[str, _Variant] = {}

        def place(variant: _Variant) -> None:
            parent = self._parent_of(variant)
            if parent is not None and parent.name not in ordered:
                place(parent)
            ordered[variant.name] = variant

        for variant in self.variants.values():
            place(variant)
        return list(ordered.values())

    def _check_values(self, variant: _Variant, check: Check) -> None:
        """What the values of a job are refused for, at the line of the value."""
        chain, at = [variant], self._parent_of(variant)
        while at is not None and at not in chain:  # a circle was told
            chain.append(at)
            at = self._parent_of(at)
        values: dict[str, Any] = {}
        for each in reversed(chain):
            values = inherit(values, each.values)
        wrong = [name for name in ("preset", "config") if not isinstance(values.get(name), str | None)]
        wrong += ["set"] if not all(isinstance(text, str) for text in _list_sets(values)) else []
        for name in wrong:
            told = f"{name}={values[name]!r} is not a text; write it as `train --{name}` takes it"
            self.wrong(f"job {variant.name!r}: {told}", self._find_place(variant, name))
        if wrong:
            return
        known = {key: value for key, value in values.items() if key in self.flags or key == "env"}
        for problem in check(known):
            found = _FLAG.search(problem)
            name = found[1].replace("-", "_") if found else ""
            self.wrong(f"job {variant.name!r}: {_FLAG.sub('', problem)}", self._find_place(variant, name))

    def _find_place(self, variant: _Variant, name: str) -> Key:
        """Where a value of a job is written."""
        places: tuple[Key, ...] = (
            (*variant.key, name), (*variant.key, "grid", name), ("grid", name), ("defaults", name),
        )  # fmt: skip
        return next((key for key in places if key in self.tree.places), variant.key)

    def drafts(self) -> Iterator[Draft]:
        """One draft for each variant and seed, parents before their children."""
        for variant in self._in_order():
            parent = self._parent_of(variant)
            plain = Draft(
                variant.name, variant.name, variant.values, priority=variant.priority, retries=variant.retries
            )
            for seed in variant.seeds:
                draft = plain if seed is None else replace(plain, seed=seed, name=_member(variant.name, seed))
                if parent is not None:
                    above = parent.name if parent.seeds == (None,) else _member(parent.name, seed)
                    point = cast(Point, str(variant.branch).partition("@")[2])
                    draft = replace(draft, parent=above, point=point)
                yield draft


def inherit(above: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a branch over those of its parent, as its run will have them."""
    sets = [*_list_sets(above), *_list_sets(values)]
    found = {**above, **values} | ({"set": sets} if sets else {})
    if any(str(text).startswith(_ENV_ID) for text in sets):
        found.pop("env", None)  # another environment than the parent's
    return found


def _list_sets(values: Mapping[str, Any]) -> list[Any]:
    given = values.get("set")
    return given if isinstance(given, list) else [] if given is None else [given]


def _member(variant: str, seed: int | None) -> str:
    return variant if seed is None else f"{variant}-s{seed}"


def _tell_choice(flag: str, value: Any) -> str:
    """A part of a name that tells a value of a grid."""
    text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^A-Za-z0-9._]+", "-", f"{flag}-{text}").strip("-")
