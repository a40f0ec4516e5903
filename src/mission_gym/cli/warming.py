"""Compiles a mission's simulator and the learner in a thread, while the command loads everything else."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from mission_gym.algorithms import load_algorithm
from mission_gym.report.screen.streams import say
from mission_gym_missions import CAPTURE_ID, PLACEMENT_ID, TERRITORY_ID

_SIMULATORS = {
    CAPTURE_ID: "mission_gym_missions.capture.simulator",
    PLACEMENT_ID: "mission_gym_missions.placement.simulator",
    TERRITORY_ID: "mission_gym_missions.territory.simulator",
}
_PATIENCE_S = 1.0  # to load what was compiled from the disk takes about half a second


def compile_beside(env_id: str, *, algo: str | None = None) -> Callable[[], None]:
    """Begin to compile what the command will need; what comes back waits for the end."""
    parts = {"simulator": _SIMULATORS.get(env_id), "learner": load_algorithm(algo).compiled if algo else None}
    thread = threading.Thread(target=_compile, args=(parts,), daemon=True)
    thread.start()

    def wait() -> None:
        importlib.import_module("mission_gym.policy.torch_forms")  # torch takes seconds, so now
        thread.join()  # a plan that measured the compiler would be wrong

    return wait


def _compile(parts: Mapping[str, str | None]) -> None:
    for name, module_name in parts.items():
        if module_name:
            module = importlib.import_module(module_name)
            timer = threading.Timer(_PATIENCE_S, _tell, (name, module))
            timer.start()
            try:
                module.compile_kernels()
            finally:
                timer.cancel()


def _tell(name: str, module: Any) -> None:
    if module.is_compiling():
        say(f"compiling the {name} (about 15 s, once)")
