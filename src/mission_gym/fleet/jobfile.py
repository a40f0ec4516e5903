"""A job file: defaults, grid and seeds become drafts of runs; every problem is reported with its line.

    name: my-question        # default: the file's stem
    defaults: {env: CartPole-v1, timesteps: 200k}
    seeds: 3                 # for all jobs; also 1..5 and [3, 7, 11]; or in one job
    grid: {gamma: [0.98, 0.99]}
    jobs:
      - {name: base}
      - {name: wide, network_arch: [256, 256], priority: 1, retries: 2}
      - {name: longer, branch: base@best, timesteps: 400k}

Every other key is a flag of `train` in snake case; `env` is ENV.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from string import Template
from typing import Any

from mission_gym.config.plain_yaml import Key, YamlTree, read_tree
from mission_gym.config.sizes import choose_batch_size
from mission_gym.errors import ConfigError, UsageError, nearest
from mission_gym.fleet.requests import (
    ENV_ID,
    Draft,
    JobVariant,
    gather_values,
    link_branches,
    list_sets,
    make_arguments,
    make_drafts,
    name_member,
    name_variant,
    parse_seeds,
)
from mission_gym.store.rundir import RUN_NAME

_TOP = ("name", "defaults", "grid", "seeds", "jobs")
_OWN = ("name", "branch", "priority", "retries", "grid", "seeds")
_NOT_FOR_JOBS = {
    "run_name": "runs are named after their job; use name",
    "runs_dir": "all runs of a group are in one folder; set it in defaults, or with --runs-dir",
}
_FLAG = re.compile(r" ?\[(?:flag )?--(?:no-)?([a-z][a-z-]*)[^\]]*\]$")
_MOST_RUNS = 1000
_NAME_CHARS = 200  # of a run's name, including its group's; the folder's name adds the time
_EXAMPLES = Path(__file__).parent
_EXAMPLE_STEPS = 256  # n_steps_per_env of the examples

# Returns the problems of a job's values, each ending with its flag in brackets.
Check = Callable[[Mapping[str, Any]], list[str]]


@dataclass(frozen=True, slots=True)
class JobFile:
    """The contents of a job file."""

    name: str
    drafts: tuple[Draft, ...]
    runs_dir: str | None = None


def make_example(name: str, cores: int) -> str:
    """The text of an example file, sized for this number of cores; UsageError with the nearest name."""
    known = sorted(path.stem for path in _EXAMPLES.glob("*.yaml"))
    if name not in known:
        raise UsageError(f"no example is called {name!r}{nearest(name, known)}; use {', '.join(known)}")
    n_envs = max(8, min(64, 8 * cores))
    at_once = min(4, cores)
    return Template((_EXAMPLES / f"{name}.yaml").read_text("utf-8")).substitute(
        cores=f"{cores} core{'s' if cores > 1 else ''}",
        how=f"{at_once} at once with {cores // at_once} of {cores} cores each",
        n_envs=n_envs,
        batch=choose_batch_size(n_envs * _EXAMPLE_STEPS, 256),
        large=choose_batch_size(n_envs * _EXAMPLE_STEPS, n_envs * _EXAMPLE_STEPS // 2),
    )


def read_job_file(path: Path, flags: Collection[str], check: Check) -> JobFile:
    """Read a file; ConfigError with all of its problems. flags: the names of `train`'s flags."""
    tree = read_tree(path)
    top = tree.value if isinstance(tree.value, dict) else {}
    name = str(top.get("name", path.stem))
    reader = _Reader(tree, name, flags)
    if not reader.problems:
        reader.read(check)
    if reader.problems:
        raise ConfigError(list(dict.fromkeys(reader.problems)))
    runs_dir = (top.get("defaults") or {}).get("runs_dir")
    return JobFile(name, tuple(make_drafts(reader.variants)), None if runs_dir is None else str(runs_dir))


class _Reader:
    """Reads one file, and collects its problems."""

    def __init__(self, tree: YamlTree, name: str, flags: Collection[str]) -> None:
        self.tree, self.name, self.flags = tree, name, flags
        self.problems = list(tree.problems)
        self.variants: dict[str, JobVariant] = {}

    def add_problem(self, problem: str, key: Key) -> None:
        self.problems.append(f"{problem} [{self.tree.location(key)}]")

    def read(self, check: Check) -> None:
        top = self.tree.value
        if not isinstance(top, dict):
            return self.add_problem("the file must be a mapping; write `jobs:` and a list below it", ())
        for key in top:
            if key not in _TOP:
                hint = nearest(str(key), _TOP)
                if key in self.flags or key == "env":
                    hint = "; write it below `defaults:`"
                self.add_problem(f"{key!r} is not a key of a job file{hint}; use {', '.join(_TOP)}", (key,))
        self._check_name(top.get("name", "x"), ("name",))
        defaults = {} if top.get("defaults") is None else top["defaults"]
        if not isinstance(defaults, dict):
            problem = f"defaults must be a mapping, not {defaults!r}; write names and values below it"
            self.add_problem(problem, ("defaults",))
            defaults = {}
        jobs = top.get("jobs")
        if not isinstance(jobs, list) or not jobs:
            return self.add_problem("the file has no jobs; write a list of them below `jobs:`", ("jobs",))
        for key in defaults:
            self._check_key(key, ("defaults", key), "defaults")
        for number, job in enumerate(jobs):
            self._read_job(job, ("jobs", number), top, defaults)
        num_runs = sum(len(variant.seeds) for variant in self.variants.values())
        if num_runs > _MOST_RUNS:
            return self.add_problem(f"the file asks for {num_runs} runs; the limit is {_MOST_RUNS}", ())
        link_branches(self.variants, self.add_problem)
        for variant in self.variants.values():
            self._check_values(variant, check)
        return self._check_run_names()

    def _check_run_names(self) -> None:
        """Seeds are part of names: `base` with seed 0 has the run name of a job `base-s0`."""
        found: dict[str, JobVariant] = {}
        for variant in self.variants.values():
            for name in (name_member(variant.name, seed) for seed in variant.seeds):
                if name in found:
                    first = self.tree.location(found[name].key)
                    problem = f"the run name {name!r} is used twice, first in {first}; rename one job"
                    self.add_problem(problem, variant.key)
                if len(f"{self.name}-{name}") > _NAME_CHARS:
                    problem = f"the run name {name[:40]!r}... has, with its group's, more than {_NAME_CHARS}"
                    self.add_problem(f"{problem} characters; shorten one of them", variant.key)
                found.setdefault(name, variant)

    def _read_job(self, job: Any, key: Key, top: dict[str, Any], defaults: dict[str, Any]) -> None:
        if not isinstance(job, dict):
            return self.add_problem(f"a job must be a mapping, not {job!r}; write `- name: ...`", key)
        name = job.get("name")
        for word in job:
            self._check_key(word, (*key, word), "a job without a name" if name is None else f"job {name!r}")
        if name is None:
            return self.add_problem("a job has no name; add `name:`", key)
        if not self._check_name(name, (*key, "name")):
            return None
        settings = {"grid": top.get("grid"), "seeds": top.get("seeds")} | defaults | job
        priority = self._read_count(settings, "priority", 0, -(10**6), key)
        retries = self._read_count(settings, "retries", 1, 0, key)
        skipped = (*_OWN, "runs_dir")
        values = {word: value for word, value in (defaults | job).items() if word not in skipped}
        branch = job.get("branch")
        if branch is not None:
            values = self._fit_branch(job, values, key)
        for choice in self._read_grid(settings.get("grid"), name, key):
            variant = name_variant(name, choice)
            if variant in self.variants:
                first = self.tree.location((*self.variants[variant].key, "name"))
                problem = f"job {variant!r} is defined twice, first in {first}; rename one"
                self.add_problem(problem, (*key, "name"))
                continue
            seeds = self._read_seeds(settings, values | choice, key)
            self.variants[variant] = JobVariant(
                variant, key, values | choice, seeds, branch, priority, retries
            )
        return None

    def _fit_branch(self, job: dict[str, Any], values: dict[str, Any], key: Key) -> dict[str, Any]:
        """The values for `branch`: the environment is the parent's, unless the job itself has another."""
        if values.get("subproc"):
            self.add_problem("subproc is not for a branch; write `vector: workers`", (*key, "subproc"))
        sets = [*list_sets(values), *([f"{ENV_ID}{job['env']}"] if "env" in job else [])]
        kept = {word: value for word, value in values.items() if word not in ("env", "set")}
        return kept | ({"set": sets} if sets else {})

    def _check_name(self, name: Any, key: Key) -> bool:
        if isinstance(name, str | int) and RUN_NAME.fullmatch(str(name)) and str(name) != "latest":
            return True
        self.add_problem(f"name={name!r} is not valid; use letters, digits, '_', '-' and '.'", key)
        return False

    def _check_key(self, word: Any, key: Key, where: str) -> None:
        if word in _NOT_FOR_JOBS and not (word == "runs_dir" and where == "defaults"):
            self.add_problem(f"{word} is not for {where}: {_NOT_FOR_JOBS[word]}", key)
        elif where == "defaults" and word in ("name", "branch"):
            self.add_problem(f"{word} is for a single job; move it to the job", key)
        elif word not in (*_OWN, "env", "runs_dir") and word not in self.flags:
            known = [*_OWN, "env", *self.flags]
            self.add_problem(f"unknown key {word!r}{nearest(str(word), known)} in {where}; correct it", key)

    def _read_count(self, settings: dict[str, Any], word: str, default: int, least: int, key: Key) -> int:
        value = settings.get(word)
        if value is not None and (type(value) is not int or value < least):
            problem = f"{word}={value!r} is not a whole number of at least {least}; correct it"
            self.add_problem(problem, (*key, word))
        return value if type(value) is int else default

    def _read_grid(self, grid: Any, name: Any, key: Key) -> Iterator[dict[str, Any]]:
        """Every choice of a grid; one empty choice without a grid, or if it is wrong."""
        own: Key = (*key, "grid")
        at = own if own in self.tree.locations else ("grid",)
        lists = list(grid.values()) if isinstance(grid, dict) else []
        is_grid = isinstance(grid, dict) and all(isinstance(each, list) and each for each in lists)
        if is_grid:
            for word in grid:
                if word in _OWN or word == "runs_dir":
                    self.add_problem(f"{word} can't be part of a grid; remove it there", (*at, word))
                else:
                    self._check_key(word, (*at, word), f"the grid of job {name!r}")
        elif grid is not None:
            problem = "grid must have a list of values for each flag, like `gamma: [0.98, 0.99]`"
            self.add_problem(problem, at)
        if prod(len(each) for each in lists if is_grid) > _MOST_RUNS:
            self.add_problem(f"the grid has more than {_MOST_RUNS} combinations; make it smaller", at)
            is_grid = False
        for choice in itertools.product(*lists) if is_grid else [()]:
            yield dict(zip(grid, choice, strict=True)) if is_grid else {}

    def _read_seeds(
        self, settings: dict[str, Any], values: dict[str, Any], key: Key
    ) -> tuple[int | None, ...]:
        given = settings.get("seeds")
        if given is None:
            return (None,)
        locations: tuple[Key, ...] = ((*key, "seeds"), ("defaults", "seeds"), ("seeds",))
        at = next(location for location in locations if location in self.tree.locations)
        first = values.get("seed", 0)
        try:
            return parse_seeds(given, first if type(first) is int else 0, self.tree.location(at))
        except UsageError as error:
            self.problems.append(str(error))
            return (None,)

    def _check_values(self, variant: JobVariant, check: Check) -> None:
        """Report the problems of a job's values, at the line of the value."""
        values = gather_values(variant, self.variants)
        wrong = [name for name in ("preset", "config") if not isinstance(values.get(name), str | None)]
        wrong += ["set"] if not all(isinstance(text, str) for text in list_sets(values)) else []
        for name in wrong:
            problem = f"{name}={values[name]!r} is not a text; write it as for `train --{name}`"
            self.add_problem(f"job {variant.name!r}: {problem}", self._find_key(variant, name))
        if wrong:
            return
        known = {name: value for name, value in values.items() if name in self.flags or name == "env"}
        problems: list[str] = []
        try:
            make_arguments(known)
        except UsageError as error:
            problems.append(str(error))
        for problem in [*problems, *([] if problems else check(known))]:
            found = _FLAG.search(problem)
            name = found[1].replace("-", "_") if found else ""
            self.add_problem(f"job {variant.name!r}: {_FLAG.sub('', problem)}", self._find_key(variant, name))

    def _find_key(self, variant: JobVariant, name: str) -> Key:
        """The location of a job's value in the file."""
        keys: tuple[Key, ...] = (
            (*variant.key, name), (*variant.key, "grid", name), ("grid", name), ("defaults", name),
        )  # fmt: skip
        return next((key for key in keys if key in self.tree.locations), variant.key)
