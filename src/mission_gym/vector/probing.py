"""Looks at an environment in a process of its own, so that one that crashes or hangs harms nobody."""

from __future__ import annotations

import contextlib

from mission_gym.data import EnvSpec
from mission_gym.env.factory import Factory
from mission_gym.errors import WorkerDied, WorkerTimeout
from mission_gym.procs import BoundedLog, Child, dump_object
from mission_gym.vector.crew import FIRST_TIMEOUT_S, open_reply

_GRACE_S = 2.0  # for the last of the steps that are measured
_CLOSE_S = 5.0  # for its close()


def probe_in_worker(
    factory: Factory,
    env_id: str,
    measure_s: float = 0.0,
    timeout_s: float = FIRST_TIMEOUT_S,
    bare: bool = False,
) -> tuple[EnvSpec, float | None]:
    """Build, reset and close a throw-away environment in a child: its EnvSpec, and the mean seconds of a
    step, measured for at most `measure_s`; None if a step fails, hangs or ends the child."""
    setup = dump_object((factory, env_id, measure_s, bare))
    child = Child("mission_gym.vector.worker:serve_probe", setup, on_output=BoundedLog(None))
    try:
        try:
            replies = child.wait(timeout_s)
        except WorkerDied as error:
            raise WorkerDied(
                f"{env_id}: the process that looked at the environment {child.describe_end()}; its "
                f"last words:\n{child.tail()}"
            ) from error
        if not replies:
            raise WorkerTimeout(
                f"{env_id}: building and resetting took over {timeout_s:.0f} s; the stack:\n"
                f"{child.read_stack()}"
            )
        spec = open_reply(replies[0])
        if measure_s and len(replies) == 1:
            with contextlib.suppress(WorkerDied):
                replies += child.wait(measure_s + _GRACE_S)
        return spec, open_reply(replies[1]) if len(replies) > 1 else None
    finally:
        child.end(_CLOSE_S)
