"""Games in other processes and languages as environments: `bridge:COMMAND`, or `BridgeEnv(COMMAND)`.

The protocol is in docs/bridge.md; clients/ holds the game's side in one file for each language.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mission_gym.bridge.env import BridgeEnv
    from mission_gym.bridge.errors import BridgeError

_HOMES = {"BridgeEnv": "env", "BridgeError": "errors"}  # loaded when used: most runs have no bridge

__all__ = ["BridgeEnv", "BridgeError"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"mission_gym.bridge.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mission_gym.bridge' has no attribute {name!r}")
