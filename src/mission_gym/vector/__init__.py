"""Many environments at once: factories and seeds in, StepBatch out.

The backends: `record` (the facts of a backend), `backends` (their table), `make_vec`.
The vectors: `base` (the interface), `serial` (the reference), `workers`, `concurrent` with `threads` and
`aio`, and `batched` (the environment's own vector form); their `arrays`.
Worker processes: `worker` (inside), `pool` (from the parent), `failures` (who failed, and how often).
Adapters: `gym_vector` for Gymnasium, `sb3` for Stable-Baselines3.
"""

from __future__ import annotations

from typing import Any

SERVICE = "mission_gym.vector.worker:serve"  # the entry point of worker processes


def __getattr__(name: str) -> Any:
    if name == "SB3VecEnv":  # imports SB3, and torch with it
        from mission_gym.vector.sb3 import SB3VecEnv

        return SB3VecEnv
    raise AttributeError(f"module 'mission_gym.vector' has no attribute {name!r}")
