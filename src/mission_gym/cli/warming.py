"""Compiles the simulator of the capture mission in a thread, while the command loads everything else."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable

from mission_gym.cli.output import note
from mission_gym.missions import CAPTURE_ID

_PATIENCE_S = 1.0  # loading the compiled simulator from the disk takes about half a second


def compile_beside(env_id: str) -> Callable[[], None]:
    """Begin to compile if the environment is the capture mission; what comes back waits for the end."""
    if env_id != CAPTURE_ID:
        return lambda: None
    thread = threading.Thread(target=_compile, daemon=True)
    thread.start()

    def wait() -> None:
        importlib.import_module("mission_gym.learner.torch_kernel")  # takes seconds, so now
        thread.join()  # a plan that measured the compiler would be wrong

    return wait


def _compile() -> None:
    from mission_gym.missions.capture.simulator import compile_kernels

    timer = threading.Timer(_PATIENCE_S, _say)
    timer.start()
    try:
        compile_kernels()
    finally:
        timer.cancel()


def _say() -> None:
    from mission_gym.missions.capture.simulator import is_compiling

    if is_compiling():
        note("compiling the simulator (about 15 s, once)")
