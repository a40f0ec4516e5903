"""Times an environment in child processes, alone and then on every core at once, and measures its memory.

A throw-away instance plays legal random actions. If it raises, hangs or dies, the parent raises an error that
says so, and nothing else is affected.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from statistics import fmean

import psutil

from mission_gym.data import EnvSpec
from mission_gym.env.agents_slot import make_slot
from mission_gym.env.factory import Factory
from mission_gym.env.pace import Pace, measure_pace
from mission_gym.errors import WorkerDied, WorkerTimeout
from mission_gym.plan.facts import EnvFacts
from mission_gym.procs import BoundedLog, Child, Link, describe_error, dump_object
from mission_gym.procs.children import ProcessTree
from mission_gym.vector.pool import open_reply

_SERVICE = "mission_gym.plan.env_costs:serve_timing"
_MAX_CHILDREN = 32
_NUM_BUILT = 3  # environments per child, to measure the memory of one more


def measure_env(
    factory: Factory, spec: EnvSpec, cores: int, seconds: float, timeout_s: float = 60.0
) -> EnvFacts:
    """Time the environment for about `seconds` alone and as long on every core; WorkerError if it fails."""
    setup, children = dump_object((factory, spec)), list[Child]()
    try:
        for _ in range(min(cores, _MAX_CHILDREN)):
            children.append(Child(_SERVICE, setup, on_output=BoundedLog(None)))
        built = _request(children, timeout_s, spec.env_id)
        memory = round(fmean(size for size, *_ in built))
        own = round(fmean(size for _, size, _ in built))
        worker = mean_memory([child.pid for child in children]) or own
        alone = Pace(*_request(children[:1], timeout_s, spec.env_id, seconds)[0])
        together = _request(children, timeout_s, spec.env_id, seconds) if len(children) > 1 else [alone]
    finally:
        for child in children:
            child.end()
    crowded_s = fmean(Pace(*each).step_s for each in together)
    return EnvFacts(
        step_s=alone.step_s,
        cpu_share=min(alone.cpu_share, 1.0),
        spread=alone.spread,
        slowdown=max(1.0, crowded_s / alone.step_s),
        memory_bytes=memory,
        worker_bytes=max(0, worker - _NUM_BUILT * memory),
        one_per_process=not all(is_built_twice for *_, is_built_twice in built),
    )


def serve_timing(link: Link, setup: bytes) -> None:
    """The child's main function: build the environment, measure its memory, then time it on request."""
    try:
        factory, spec = pickle.loads(setup)
        slots = [make_slot(factory, spec, 0, _seed)]
        slots[0].reset(0)
        before = _resident_bytes()
        with suppress(Exception):  # border: an environment that can't be built twice gets its own process
            for _ in range(_NUM_BUILT - 1):
                slots.append(make_slot(factory, spec, len(slots), _seed))
                slots[-1].reset(0)
        size = max(0, _resident_bytes() - before) / (_NUM_BUILT - 1)
        link.send(("ok", (size, _resident_bytes(), len(slots) == _NUM_BUILT)))
        while True:
            seconds = link.recv()
            link.send(("ok", tuple(measure_pace(slots[0], spec, seconds))))
    except EOFError:
        raise
    except Exception as error:  # noqa: BLE001  border: worker main
        link.send(("error", *describe_error(error)))


def _request(
    children: Sequence[Child], timeout_s: float, env_id: str, seconds: float | None = None
) -> list[tuple[float, ...]]:
    """One reply of each child, in order. seconds: request a timing of this length first."""
    if seconds is not None:
        for child in children:
            child.send(seconds)
    answers, end = list[tuple[float, ...]](), time.monotonic() + timeout_s
    for child in children:
        try:
            replies = child.wait(end - time.monotonic())
        except WorkerDied as error:
            raise WorkerDied(
                f"{env_id}: the process that timed the environment {child.describe_end()}; its last "
                f"output:\n{child.tail()}"
            ) from error
        if not replies:
            raise WorkerTimeout(
                f"{env_id}: it was not built, reset and timed within {timeout_s:.0f} s; the stack:\n"
                f"{child.read_stack()}"
            )
        answers.append(open_reply(replies[0]))
    return answers


def mean_memory(pids: Sequence[int]) -> int | None:
    """The mean proportional memory (PSS) of child processes and their parents up to this one; None if the
    system does not report it."""
    own = psutil.Process()
    try:
        chains = [[psutil.Process(pid), *psutil.Process(pid).parents()] for pid in pids]
        found = {process for chain in chains for process in takewhile(own.__ne__, chain)}
        return round(sum(each.memory_full_info().pss for each in found) / len(pids)) if pids else None
    except (psutil.Error, AttributeError):
        return None


def _resident_bytes() -> int:
    """Resident memory of this process and of the processes that its environments started."""
    below = ProcessTree(os.getpid(), only_below=True)
    return int(psutil.Process().memory_info().rss) + below.read_bytes()


def _seed(episode: int) -> int:
    return episode
