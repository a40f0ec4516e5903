"""Mission Gym: point it at any Gymnasium environment, and it trains as fast as your machine allows.

The names below are loaded when first used, so that importing the package stays cheap.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# `mission-gym doctor` looks at installations in which Gymnasium or NumPy may be what is broken.
if sys.argv[1:2] != ["doctor"] or Path(sys.argv[0]).stem not in ("mission-gym", "-m"):
    import mission_gym.missions  # noqa: F401  registers the missions

if TYPE_CHECKING:
    from mission_gym.api import Run, iterate, load, train
    from mission_gym.backends.vec import make_vec
    from mission_gym.config.sizes import choose_batch_size, pick_batch_size

_HOMES = {
    "choose_batch_size": "mission_gym.config.sizes",
    "pick_batch_size": "mission_gym.config.sizes",
    "Run": "mission_gym.api",
    "iterate": "mission_gym.api",
    "load": "mission_gym.api",
    "train": "mission_gym.api",
    "make_vec": "mission_gym.backends.vec",
}

__all__ = [
    "Run",
    "__version__",
    "choose_batch_size",
    "iterate",
    "load",
    "make_vec",
    "pick_batch_size",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "vector":  # mg.vector.SB3VecEnv
        return importlib.import_module("mission_gym.vector")
    raise AttributeError(f"module 'mission_gym' has no attribute {name!r}")
