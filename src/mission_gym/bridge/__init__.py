"""Environments in other processes and languages: `bridge:COMMAND`, or `BridgeEnv(COMMAND)`.

The protocol is in docs/bridge.md. `env` is the Gymnasium environment, `engine` a process of games, which the
environments of a vector share (`EnginePool`); `answers` and `spaces` have the rules of the protocol. clients/
holds the game's side, one file per language.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mission_gym.bridge.answers import BridgeError
    from mission_gym.bridge.env import BridgeEnv

T = TypeVar("T")
_HOMES = {"BridgeEnv": "env", "BridgeError": "answers"}  # loaded when used: most runs have no bridge
_here = threading.local()

__all__ = ["BridgeEnv", "BridgeError"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"mission_gym.bridge.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mission_gym.bridge' has no attribute {name!r}")


class EnginePool:
    """The processes of one vector, by their command and arguments: one thread builds and steps its
    environments."""

    def __init__(self) -> None:
        self.engines: dict[Any, list[Any]] = {}

    def share(self, factory: Callable[[], T]) -> Callable[[], T]:
        """Return a factory whose environments share this pool's processes, if those take several games."""
        return partial(self._build, factory)

    def _build(self, factory: Callable[[], T]) -> T:
        before = current_pool()
        _here.pool = self
        try:
            return factory()
        finally:
            _here.pool = before


def current_pool() -> EnginePool | None:
    """Return the pool that is active in this thread."""
    return getattr(_here, "pool", None)
