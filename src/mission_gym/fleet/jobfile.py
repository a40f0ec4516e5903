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
from math import prod
from pathlib import Path
from typing import Any

from mission_gym.config.plain_yaml import Key, YamlTree, read_tree
from mission_gym.errors import ConfigError, UsageError, nearest
from mission_gym.fleet.branches import gather_values, link_branches, make_drafts
from mission_gym.fleet.drafts import ENV_ID, JobFile, Variant, list_sets, name_member, name_variant
from mission_gym.fleet.seeds import parse_seeds
from mission_gym.store.rundir import RUN_NAME

_TOP = ("name", "defaults", "grid", "seeds", "jobs")
_OWN = ("name", "branch", "priority", "retries", "grid", "seeds")
_NOT_FOR_JOBS = {
    "run_name": "runs are named after their job; use name",
    "runs_dir": "a group's runs lie in one folder; write it into defaults, or use --runs-dir",
}
_FLAG = re.compile(r" ?\[(?:flag )?--(?:no-)?([a-z][a-z-]*)[^\]]*\]$")
_NUM_MEMBERS = 1000
_NAME_CHARS = 200  # of a run, its group in front; its folder adds the time

# From the values of a job to its problems, each with the flag that it is about in brackets at its end.
Check = Callable[[Mapping[str, Any]], list[str]]


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
    return JobFile(name, tuple(make_drafts(reader.variants)), None if runs_dir is None else str(runs_dir))


class _Reader:
    """One reading; problems are collected on the way."""

    def __init__(self, tree: YamlTree, name: str, flags: Collection[str], problems: list[str]) -> None:
        self.tree, self.name, self.flags, self.problems = tree, name, flags, problems
        self.variants: dict[str, Variant] = {}

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
        link_branches(self.variants, self.wrong)
        for variant in self.variants.values():
            self._check_values(variant, check)
        num_members = sum(len(variant.seeds) for variant in self.variants.values())
        if num_members > _NUM_MEMBERS:
            self.wrong(f"the file asks for {num_members} runs; the most is {_NUM_MEMBERS}", ())
        self._check_members()
        return None

    def _check_members(self) -> None:
        """Seeds add to names: `base` with seed 0 is the run of a job `base-s0`."""
        found: dict[str, Variant] = {}
        most = _NAME_CHARS - len(f"{self.name}-")
        if most < 1:
            return self.wrong(
                f"the group's name has more than {_NAME_CHARS - 2} characters; shorten it", ("name",)
            )
        for variant in self.variants.values():
            for name in (name_member(variant.name, seed) for seed in variant.seeds):
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
        for key in job:
            self._check_key(key, (*at, key), "a job without a name" if name is None else f"job {name!r}")
        if name is None:
            return self.wrong("a job has no name; add `name:`", at)
        if not self._check_name(name, (*at, "name")):
            return None
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
            variant = name_variant(name, choice)
            if variant in self.variants:
                first = self.tree.place((*self.variants[variant].key, "name"))
                self.wrong(f"job {variant!r} is there twice, first in {first}; rename one", (*at, "name"))
                continue
            seeds = self._read_seeds(settings, values | choice, at)
            retries = 1 if retries is None else retries
            self.variants[variant] = Variant(
                variant, at, values | choice, seeds, branch, priority or 0, retries
            )
        return None

    def _fit_branch(self, job: dict[str, Any], values: dict[str, Any], at: Key) -> dict[str, Any]:
        """The values as `branch` takes them: the environment is the parent's unless the job names another."""
        if values.get("subproc"):
            self.wrong("subproc is not for a branch; write `vector: workers`", (*at, "subproc"))
        sets = [*list_sets(values), *([f"{ENV_ID}{job['env']}"] if "env" in job else [])]
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
            yield {}  # what else is wrong with the job
            return
        for key in grid:
            if key in _OWN or key == "runs_dir":
                self.wrong(f"{key} can't be part of a grid; remove it there", (*place, key))
            else:
                self._check_key(key, (*place, key), f"the grid of job {name!r}")
        if prod(len(each) for each in lists) > _NUM_MEMBERS:
            self.wrong(f"the grid has more than {_NUM_MEMBERS} combinations; make it smaller", place)
            yield {}
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

    def _check_values(self, variant: Variant, check: Check) -> None:
        """What the values of a job are refused for, at the line of the value."""
        values = gather_values(variant, self.variants)
        wrong = [name for name in ("preset", "config") if not isinstance(values.get(name), str | None)]
        wrong += ["set"] if not all(isinstance(text, str) for text in list_sets(values)) else []
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

    def _find_place(self, variant: Variant, name: str) -> Key:
        """Where a value of a job is written."""
        places: tuple[Key, ...] = (
            (*variant.key, name), (*variant.key, "grid", name), ("grid", name), ("defaults", name),
        )  # fmt: skip
        return next((key for key in places if key in self.tree.places), variant.key)
