"""Times an environment in children: alone, then on every core at once; and weighs it.

A throw-away instance plays legal random actions. One that raises, hangs or dies while it is timed ends in
an error of the parent that says so; it harms nobody.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean

from mission_gym.data import EnvSpec
from mission_gym.env.factory import Factory
from mission_gym.env.pace import Pace, measure_pace
from mission_gym.env.slot import EnvSlot
from mission_gym.errors import WorkerDied, WorkerTimeout
from mission_gym.plan.facts import EnvFacts
from mission_gym.procs import BoundedLog, Child, Link, describe_error, dump_object, wait_for_replies
from mission_gym.vector.crew import open_reply

_MOST_CHILDREN = 32
_WEIGHED = 3  # environments that are built to tell what one more takes


def measure_env(
    factory: Factory, spec: EnvSpec, cores: int, seconds: float, timeout_s: float = 60.0
) -> EnvFacts:
    """Time the environment for about `seconds` alone and as long on every core; WorkerError if it fails."""
    setup = dump_object((factory, spec))
    target = "mission_gym.plan.env_costs:serve_timing"
    children: list[Child] = []
    try:
        for _ in range(min(cores, _MOST_CHILDREN)):
            children.append(Child(target, setup, on_output=BoundedLog(None)))
        weights = _ask(children, timeout_s, spec.env_id)
        memory = max(0, round(fmean(weight for weight, _ in weights)))
        worker = round(
            fmean(_private_bytes(child.pid) or own for child, (_, own) in zip(children, weights, strict=True))
        )
        alone = Pace(*_ask(children[:1], timeout_s, spec.env_id, seconds)[0])
        together = [alone]
        if len(children) > 1:
            together = [Pace(*reply) for reply in _ask(children, timeout_s, spec.env_id, seconds)]
    finally:
        for child in children:
            child.end()
    crowded_s = fmean(timing.step_s for timing in together)
    return EnvFacts(
        step_s=alone.step_s,
        cpu_share=min(alone.cpu_share, 1.0),
        spread=alone.spread,
        slowdown=max(1.0, crowded_s / alone.step_s),
        memory_bytes=memory,
        worker_bytes=max(0, worker - _WEIGHED * memory),
    )


def time_steps(factory: Factory, spec: EnvSpec, seconds: float) -> Pace:
    """Play legal random actions in this process for about `seconds`."""
    slot = EnvSlot(factory, spec, 0, _seed)
    try:
        slot.reset(0)
        return measure_pace(slot, spec, seconds)
    finally:
        with suppress(Exception):  # border: a throw-away environment that can't close harms nothing
            slot.env.close()


def serve_timing(link: Link, setup: bytes) -> None:
    """In a child: build and weigh the environment, then time it as often as asked."""
    try:
        factory, spec = pickle.loads(setup)
        slots = [EnvSlot(factory, spec, 0, _seed)]
        slots[0].reset(0)
        before = _resident_bytes()
        with suppress(Exception):  # border: one that can't be built twice is taken as weightless
            for _ in range(_WEIGHED - 1):
                slots.append(EnvSlot(factory, spec, len(slots), _seed))
                slots[-1].reset(0)
        link.send(("ok", (max(0, _resident_bytes() - before) / (_WEIGHED - 1), _resident_bytes())))
        while True:
            seconds = link.recv()
            link.send(("ok", tuple(measure_pace(slots[0], spec, seconds))))
    except EOFError:
        raise
    except Exception as error:  # noqa: BLE001  border: worker main
        link.send(("error", *describe_error(error)))


def _ask(
    children: Sequence[Child], timeout_s: float, env_id: str, command: object = None
) -> list[tuple[float, ...]]:
    """One reply of each child, in order; a command is given first if there is one."""
    if command is not None:
        for child in children:
            child.send(command)
    replies: dict[Child, tuple[float, ...]] = {}
    end = time.monotonic() + timeout_s
    while len(replies) < len(children):
        waiting = [child for child in children if child not in replies]
        if time.monotonic() > end:
            raise WorkerTimeout(
                f"{env_id}: it was not built, reset and timed within {timeout_s:.0f} s; the stack:\n"
                f"{waiting[0].read_stack()}"
            )
        for child in wait_for_replies(waiting, 0.1):
            try:
                for reply in child.take():
                    replies[child] = open_reply(reply)
            except WorkerDied as error:
                raise WorkerDied(
                    f"{env_id}: the process that timed the environment {child.describe_end()}; its last "
                    f"words:\n{child.tail()}"
                ) from error
    return [replies[child] for child in children]


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process(os.getpid()).memory_info().rss)


def _private_bytes(pid: int) -> int | None:
    """The memory of a process, with its part of what it shares; None where the system does not tell."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except (psutil.Error, AttributeError):
        return None


def _seed(episode: int) -> int:
    return episode
