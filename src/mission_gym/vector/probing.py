"""Looks at an environment in a process of its own, so that one that crashes or hangs harms nobody."""

from __future__ import annotations

import time

from mission_gym.data import EnvSpec
from mission_gym.env.factory import Factory
from mission_gym.errors import WorkerDied, WorkerTimeout
from mission_gym.procs import BoundedLog, Child, dump_object, wait_for_replies
from mission_gym.vector.crew import FIRST_TIMEOUT_S, open_reply


def probe_in_worker(
    factory: Factory,
    env_id: str,
    measure_s: float = 0.0,
    timeout_s: float = FIRST_TIMEOUT_S,
    bare: bool = False,
) -> tuple[EnvSpec, float | None]:
    """Build, reset and close a throw-away environment in a child: its EnvSpec, and the mean seconds of a
    step, measured for at most `measure_s`."""
    setup = dump_object((factory, env_id, measure_s, bare))
    child = Child("mission_gym.vector.worker:serve_probe", setup, on_output=BoundedLog(None))
    try:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if wait_for_replies([child], 0.1):
                try:
                    replies = child.take()
                except WorkerDied as error:
                    raise WorkerDied(
                        f"{env_id}: the process that looked at the environment {child.describe_end()}; its "
                        f"last words:\n{child.tail()}"
                    ) from error
                for reply in replies:
                    spec, step_s = open_reply(reply)
                    return spec, step_s
        raise WorkerTimeout(
            f"{env_id}: building and resetting took over {timeout_s:.0f} s; the stack:\n{child.read_stack()}"
        )
    finally:
        child.end()
