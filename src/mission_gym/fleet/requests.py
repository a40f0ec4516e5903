"""From drafts to job requests: command lines with the folder, Python and environment variables to run
them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mission_gym.config.layers import Resolved
from mission_gym.config.plain_yaml import to_plain
from mission_gym.errors import UsageError
from mission_gym.fleet.drafts import Draft, Needs, parse_seeds
from mission_gym.fleet.mps import PIPES, check_mps
from mission_gym.fleet.queue import Queue
from mission_gym.procs.machine import read_nvidia
from mission_gym.store.groups import GroupDir, JobRequest
from mission_gym.store.rundir import slug

# Environment variables that a job keeps from the process that requested it; another process may start it.
_VARIABLES = (
    "PYTHONPATH", "CUDA_VISIBLE_DEVICES", PIPES, "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "XDG_STATE_HOME",
)  # fmt: skip


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
