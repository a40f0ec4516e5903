"""Many environments at once: factories and seeds in, StepBatch out."""

from __future__ import annotations

from typing import Any

SERVICE = "mission_gym.vector.worker:serve"  # what a worker process runs


def __getattr__(name: str) -> Any:
    if name == "SB3VecEnv":  # loads SB3, and torch with it
        from mission_gym.vector.sb3 import SB3VecEnv

        return SB3VecEnv
    raise AttributeError(f"module 'mission_gym.vector' has no attribute {name!r}")
