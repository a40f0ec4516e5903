"""Compiles the simulator of the capture mission in a thread, while the command loads everything else."""

from __future__ import annotations

import threading

from mission_gym.cli.output import note
from mission_gym.missions import CAPTURE_ID

_PATIENCE_S = 1.0  # loading the compiled simulator from the disk takes about half a second


def compile_beside(env_id: str) -> None:
    """Begin to compile if the environment is the capture mission; its first use waits for the end."""
    if env_id == CAPTURE_ID:
        threading.Thread(target=_compile, daemon=True).start()


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
