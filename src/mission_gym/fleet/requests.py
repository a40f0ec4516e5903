"""From drafts to job requests: command lines with the folder, Python and environment variables to run them.

A job file asks for variants (a job with one choice of its grid) and drafts (their runs). A variant may branch
from another variant. Branches are checked, ordered with parents first, and expanded seed by seed: seed k
branches from seed k of the parent.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from mission_gym.config.layers import Resolved
from mission_gym.config.plain_yaml import Key, to_plain
from mission_gym.errors import UsageError, nearest
from mission_gym.fleet.mps import PIPES, check_mps
from mission_gym.fleet.queue import Queue
from mission_gym.procs.machine import read_nvidia
from mission_gym.store.groups import GroupDir, JobRequest, Point
from mission_gym.store.rundir import slug

# Environment variables that a job keeps from the process that requested it; another process may start it.
_VARIABLES = (
    "PYTHONPATH", "CUDA_VISIBLE_DEVICES", PIPES, "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "XDG_STATE_HOME",
)  # fmt: skip
ENV_ID = "env.env_id="  # how `branch --set` names another environment
_MOST_SEEDS = 1000
AddProblem = Callable[[str, Key], None]  # takes a problem, and its key in the file


def make_arguments(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments of `train` or `branch` for values by flag name; `env` is ENV and comes first. UsageError
    for a value that would be read as a flag. `trust` is left out: it is a field of the request."""
    env = values.get("env")
    flags = (
        word
        for name, value in values.items()
        if name not in ("env", "trust")
        for word in _make_words(name, value)
    )
    return (*([] if env is None else [_check_bare("env", str(env))]), *flags)


def _check_bare(name: str, word: str) -> str:
    if word.startswith("-"):
        raise UsageError(f"{word!r} begins with '-', like a flag; values of {name} may not [--{name}]")
    return word


def _make_words(name: str, value: Any) -> Iterator[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    elif name == "set":
        yield from (f"--set={text}" for text in ([value] if isinstance(value, str) else value))
    elif name == "curriculum" and isinstance(value, Mapping):
        yield f"--set=env.curriculum={_to_yaml(value)}"
    elif isinstance(value, Mapping):
        pairs = (f"{key}={_to_yaml(item)}" for key, item in value.items())
        yield from (f"--{flag}", *(_check_bare(flag, pair) for pair in pairs))
    elif isinstance(value, list | tuple) and any(isinstance(item, str) for item in value):
        yield from (f"--{flag}", *(_check_bare(flag, str(item)) for item in value))
    elif isinstance(value, list | tuple):
        yield f"--{flag}={','.join(map(str, value))}"
    else:
        yield f"--{flag}={'none' if value is None else value}"


def _to_yaml(value: Any) -> str:
    """One line of YAML that keeps the type: `"3"` stays a text, 1e-05 a number."""
    text: str = yaml.safe_dump(to_plain(value), default_flow_style=True, width=1 << 30, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def find_needs(resolved: Resolved, *, on_cluster: bool = False) -> Needs:
    """The cores that the user gave by number, and whether the run may learn on a GPU. on_cluster: its nodes
    are unknown here, so a GPU must be requested explicitly."""
    paths = ("vector.num_workers", "compute.threads")
    given = [resolved.config.value(path) for path in paths if resolved.explicit(path)]
    device = resolved.config.compute.device
    uses_gpu = device.startswith(("cuda", "mps"))
    uses_gpu = uses_gpu or (device == "auto" and not on_cluster and bool(read_nvidia()[1]))
    return Needs(max([1, *(number for number in given if number != "auto")]), uses_gpu)


def make_requests(
    group: str, drafts: Sequence[Draft], runs_dir: str, cuda_mps: str = "auto", cluster: str | None = None
) -> list[JobRequest]:
    """The requests of a group. cluster: the address of the Ray cluster to run on, "" for one that is started
    here. UsageError if CUDA MPS is unavailable."""
    uses_gpu = cluster is None and any(draft.needs.uses_gpu for draft in drafts)
    mode = check_mps(cuda_mps, uses_gpu=uses_gpu)
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    requests = []
    for draft in drafts:
        values = draft.values | {"runs_dir": os.path.abspath(runs_dir), "run_name": f"{group}-{draft.name}"}
        values |= {} if draft.seed is None else {"seed": draft.seed}
        request = JobRequest(
            name=draft.name, variant=draft.variant, arguments=make_arguments(values), folder=os.getcwd(),
            python=sys.executable, variables=variables, parent=draft.parent, point=draft.point,
            seed=draft.seed, priority=draft.priority, retries=draft.retries,
            cores=draft.needs.cores, uses_gpu=draft.needs.uses_gpu, cuda_mps=mode, cluster=cluster,
            trust=bool(draft.values.get("trust")),
        )  # fmt: skip
        requests.append(request)
    return requests


def make_seed_group(
    queue: Queue,
    resolved: Resolved,
    values: Mapping[str, Any],
    seeds: object,
    source: str,
    cuda_mps: str = "auto",
) -> GroupDir:
    """Make a group of one config with several seeds, or of one run if `seeds` is None, and queue it. values:
    the given ones by flag name, from which `resolved` was made. source: of the seeds, for messages."""
    run = resolved.config.run
    own = {key: value for key, value in values.items() if key not in ("seed", "run_name", "runs_dir")}
    name, needs = run.run_name or slug(resolved.config.env.env_id), find_needs(resolved)
    drafts = [Draft("run", "run", own, seed=run.seed, needs=needs)]
    if seeds is not None:
        numbers = parse_seeds(seeds, run.seed, source)
        drafts = [Draft(f"s{number}", "seeds", own, seed=number, needs=needs) for number in numbers]
    requests = make_requests(name, drafts, run.runs_dir, cuda_mps)
    return queue.make_group(Path(run.runs_dir), name, "train" if seeds is None else "seeds", requests)


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
