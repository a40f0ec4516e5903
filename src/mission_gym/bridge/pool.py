"""Environments that share a process of games: those that one thread builds and steps for one vector."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

_here = threading.local()


class EnginePool:
    """The processes of one vector, by their command and arguments."""

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
