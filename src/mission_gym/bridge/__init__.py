"""Environments in other processes and languages: `bridge:COMMAND`, or `BridgeEnv(COMMAND)`.

The protocol is in docs/bridge.md. `env` is the Gymnasium environment, `engine` a process of games, `pool`
shares processes between environments; `answers` and `spaces` have the rules of the protocol. clients/ holds
the game's side, one file per language.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mission_gym.bridge.answers import BridgeError
    from mission_gym.bridge.env import BridgeEnv

_HOMES = {"BridgeEnv": "env", "BridgeError": "answers"}  # loaded when used: most runs have no bridge

__all__ = ["BridgeEnv", "BridgeError"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"mission_gym.bridge.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mission_gym.bridge' has no attribute {name!r}")
