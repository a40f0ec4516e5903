"""From drafts to requests: command lines, named after their group, with where and for whom they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.config.layers import Resolved
from mission_gym.fleet.arguments import make_arguments
from mission_gym.fleet.drafts import Draft
from mission_gym.fleet.mps import PIPES, check_mps
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.seeds import parse_seeds
from mission_gym.procs.machine import read_nvidia
from mission_gym.store.groups import GroupDir, JobRequest
from mission_gym.store.rundir import slug

# What a job needs of the surroundings of who asked for it: another process may start it.
_VARIABLES = (
    "PYTHONPATH", "CUDA_VISIBLE_DEVICES", PIPES, "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "XDG_STATE_HOME",
)  # fmt: skip


class Needs(NamedTuple):
    """What the flags of a job ask of the machine."""

    cores: int = 1
    uses_gpu: bool = False


def find_needs(resolved: Resolved, *, on_cluster: bool = False) -> Needs:
    """The cores that the user asked for by number, and whether the run may learn on a GPU. on_cluster: what
    its nodes have is not known here, so that a GPU must be asked for."""
    paths = ("vector.num_workers", "compute.threads")
    asked = [resolved.config.value(path) for path in paths if resolved.explicit(path)]
    device = resolved.config.compute.device
    uses_gpu = device.startswith(("cuda", "mps"))
    uses_gpu = uses_gpu or (device == "auto" and not on_cluster and bool(read_nvidia()[1]))
    return Needs(max([1, *(number for number in asked if number != "auto")]), uses_gpu)


def make_requests(
    group: str,
    drafts: Sequence[Draft],
    runs_dir: str,
    needs: Mapping[str, Needs],
    cuda_mps: str = "auto",
    cluster: str | None = None,
) -> list[JobRequest]:
    """The requests of a group. needs: by the names of drafts. cluster: where they run, by its address, "" for
    one of our own. UsageError for MPS that can't be had."""
    uses_gpu = cluster is None and any(each.uses_gpu for each in needs.values())
    wish = check_mps(cuda_mps, uses_gpu=uses_gpu)
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    requests = []
    for draft in drafts:
        values = draft.values | {"runs_dir": os.path.abspath(runs_dir), "run_name": f"{group}-{draft.name}"}
        values |= {} if draft.seed is None else {"seed": draft.seed}
        asked = needs[draft.name]
        request = JobRequest(
            name=draft.name, variant=draft.variant, arguments=make_arguments(values), folder=os.getcwd(),
            python=sys.executable, variables=variables, parent=draft.parent, point=draft.point,
            seed=draft.seed, priority=draft.priority, retries=draft.retries, cores=asked.cores,
            uses_gpu=asked.uses_gpu, cuda_mps=wish, cluster=cluster,
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
    """A new group in the queue: one config with several seeds; with None, one run. values: those that were
    given, by the names of flags; `resolved` was made of them. source: of the seeds, in messages."""
    run = resolved.config.run
    own = {key: value for key, value in values.items() if key not in ("seed", "run_name", "runs_dir")}
    name, needs = run.run_name or slug(resolved.config.env.env_id), find_needs(resolved)
    if seeds is None:
        drafts = [Draft("run", "run", own, seed=run.seed)]
    else:
        drafts = [Draft(f"s{k}", "seeds", own, seed=k) for k in parse_seeds(seeds, run.seed, source)]
    all_needs = dict.fromkeys([each.name for each in drafts], needs)
    requests = make_requests(name, drafts, run.runs_dir, all_needs, cuda_mps)
    return queue.make_group(Path(run.runs_dir), name, "train" if seeds is None else "seeds", requests)
