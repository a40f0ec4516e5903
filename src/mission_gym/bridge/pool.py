"""Which environments share a process of games: those that one thread builds, and steps, for one vector."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

_here = threading.local()


class Pool:
    """The processes of one vector, by what they were started with."""

    def __init__(self) -> None:
        self.engines: dict[Any, list[Any]] = {}

    def share(self, factory: Callable[[], T]) -> Callable[[], T]:
        """What builds the same, in processes of this pool as far as those take several games."""
        return partial(self._build, factory)

    def _build(self, factory: Callable[[], T]) -> T:
        before = current_pool()
        _here.pool = self
        try:
            return factory()
        finally:
            _here.pool = before


def current_pool() -> Pool | None:
    """The pool that is open in this thread."""
    return getattr(_here, "pool", None)
