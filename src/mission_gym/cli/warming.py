"""Compiles the simulator of a mission in a thread, while the command loads everything else."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable

from mission_gym.cli.output import note
from mission_gym.missions import CAPTURE_ID, PLACEMENT_ID

_SIMULATORS = {
    CAPTURE_ID: "mission_gym.missions.capture.simulator",
    PLACEMENT_ID: "mission_gym.missions.placement.simulator",
}
_PATIENCE_S = 1.0  # loading the compiled simulator from the disk takes about half a second


def compile_beside(env_id: str) -> Callable[[], None]:
    """Begin to compile if the environment is a mission; what comes back waits for the end."""
    if env_id not in _SIMULATORS:
        return lambda: None
    thread = threading.Thread(target=_compile, args=(_SIMULATORS[env_id],), daemon=True)
    thread.start()

    def wait() -> None:
        importlib.import_module("mission_gym.learner.torch_kernel")  # takes seconds, so now
        thread.join()  # a plan that measured the compiler would be wrong

    return wait


def _compile(module_name: str) -> None:
    simulator = importlib.import_module(module_name)

    def say() -> None:
        if simulator.is_compiling():
            note("compiling the simulator (about 15 s, once)")

    timer = threading.Timer(_PATIENCE_S, say)
    timer.start()
    try:
        simulator.compile_kernels()
    finally:
        timer.cancel()
