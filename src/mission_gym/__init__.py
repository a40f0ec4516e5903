"""Mission Gym trains any Gymnasium environment as fast as your machine allows.

The names below are loaded when they are first used, so that importing the package stays cheap.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"


class _Registration:
    """Registers the missions when Gymnasium is first imported. Importing it here would take longer than all
    the rest, and `mission-gym doctor` must work if it is broken."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                importlib.import_module("mission_gym_missions")

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


if "gymnasium" in sys.modules:
    importlib.import_module("mission_gym_missions")
else:
    sys.meta_path.insert(0, _Registration())

if TYPE_CHECKING:
    from mission_gym.api import Group, Run, Update, branch, iterate, load, resume, train
    from mission_gym.config.sizes import choose_batch_size, pick_batch_size
    from mission_gym.procs.companions import Companion
    from mission_gym.report.dashboard.serve import watch
    from mission_gym.vector.make_vec import make_vec

_HOMES = {
    "Companion": "mission_gym.procs.companions",
    "choose_batch_size": "mission_gym.config.sizes",
    "pick_batch_size": "mission_gym.config.sizes",
    "Group": "mission_gym.api",
    "Run": "mission_gym.api",
    "Update": "mission_gym.api",
    "branch": "mission_gym.api",
    "iterate": "mission_gym.api",
    "load": "mission_gym.api",
    "resume": "mission_gym.api",
    "train": "mission_gym.api",
    "make_vec": "mission_gym.vector.make_vec",
    "watch": "mission_gym.report.dashboard.serve",
}

__all__ = [
    "Companion",
    "Group",
    "Run",
    "Update",
    "__version__",
    "branch",
    "choose_batch_size",
    "iterate",
    "load",
    "make_vec",
    "pick_batch_size",
    "resume",
    "train",
    "watch",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "vector":  # mg.vector.SB3VecEnv
        return importlib.import_module("mission_gym.vector")
    raise AttributeError(f"module 'mission_gym' has no attribute {name!r}")
