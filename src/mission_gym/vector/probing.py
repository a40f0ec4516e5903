"""Looks at an environment in a process of its own, so that one that crashes or hangs harms nobody."""

from __future__ import annotations

import contextlib
import time

from mission_gym.data import EnvSpec
from mission_gym.env.factory import Factory
from mission_gym.env.leaves import MAX_SEQUENCE
from mission_gym.env.pace import Pace, read_queued_s
from mission_gym.errors import WorkerDied, WorkerTimeout
from mission_gym.procs import BoundedLog, Child, dump_object
from mission_gym.vector import restarts
from mission_gym.vector.crew import open_reply
from mission_gym.vector.restarts import RestartBudget

_GRACE_S = 0.8  # for the last of the steps that are measured
_CLOSE_S = 5.0  # for its close()


def probe_in_worker(
    factory: Factory,
    env_id: str,
    measure_s: float = 0.0,
    bare: bool = False,
    max_restarts: int = 0,
    max_sequence: int = MAX_SEQUENCE,
) -> tuple[EnvSpec, Pace | None]:
    """Build, reset and close a throw-away environment in a child: its EnvSpec, and the pace of its steps,
    measured for about `measure_s`; None if a step fails or ends the child. Of steps that take longer than
    that, the pace is as long as was waited, and what the child computed meanwhile. max_restarts: how often
    another child looks when one was killed before it told."""
    setup, timeout_s = dump_object((factory, env_id, measure_s, bare, max_sequence)), restarts.FIRST_TIMEOUT_S
    budget = RestartBudget(max_restarts)
    while True:
        child = Child("mission_gym.vector.worker:serve_probe", setup, on_output=BoundedLog(None))
        try:
            replies = child.wait(timeout_s)
            if not replies:
                raise WorkerTimeout(
                    f"{env_id}: building and resetting took over {timeout_s:.0f} s; the stack:\n"
                    f"{child.read_stack()}"
                )
            spec = open_reply(replies[0])
            return spec, _find_pace(child, replies, measure_s) if measure_s else None
        except WorkerDied as error:
            failure = WorkerDied(
                f"{env_id}: the process that looked at the environment {child.describe_end()}; its "
                f"last words:\n{child.tail()}"
            )
            if not child.was_killed():
                raise failure from error
        finally:
            child.end(_CLOSE_S)
        budget.spend(0, failure)


def _find_pace(child: Child, replies: list[bytes], measure_s: float) -> Pace | None:
    """The pace that the child tells after its spec, or what can be seen of it from here."""
    begun, queued_s, cpu_s = time.monotonic(), read_queued_s(child.pid), _cpu_s(child.pid)
    if len(replies) == 1:
        try:
            replies = [*replies, *child.wait(measure_s + _GRACE_S)]
        except WorkerDied:
            return None
    if len(replies) > 1:
        pace: Pace | None = open_reply(replies[1])
        return pace
    cpu_s, queued_s = _cpu_s(child.pid) - cpu_s, read_queued_s(child.pid) - queued_s
    own_s = max(time.monotonic() - begun - queued_s, cpu_s)
    return Pace(0, own_s, 0.0, cpu_s / own_s)


def _cpu_s(pid: int) -> float:
    import psutil  # 20 ms to load, and most vectors time nothing

    with contextlib.suppress(psutil.Error):
        return sum(psutil.Process(pid).cpu_times()[:2])
    return 0.0
