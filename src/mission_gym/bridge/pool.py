"""Which environments share a process of games: those that one thread builds, and steps, for one vector."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_here = threading.local()


class Pool:
    """The processes of one vector, by what they were started with."""

    def __init__(self) -> None:
        self.engines: dict[Any, list[Any]] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """What this thread builds meanwhile shares processes, as far as those take several games."""
        before = getattr(_here, "pool", None)
        _here.pool = self
        try:
            yield
        finally:
            _here.pool = before


def current_pool() -> Pool | None:
    """The pool that is open in this thread."""
    return getattr(_here, "pool", None)
