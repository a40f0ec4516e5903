"""How the simulator is compiled: numba without the GIL, without fastmath, without numba's own threads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Nothing here allocates, so reference counts, an atomic operation for each array passed on, are left out:
# they took a third of the time.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}


def kernel(function: Function) -> Function:
    """Compile a part of the simulator; it ends up inside the entries that call it."""
    return cast(Function, numba.njit(**_OPTIONS)(function))


def entry(function: Function) -> Function:
    """Compile a function that Python calls: it frees the GIL and is cached on disk."""
    try:
        return cast(Function, numba.njit(nogil=True, cache=True, **_OPTIONS)(function))
    except RuntimeError:  # no folder can be written to, as in some containers: compile every time
        return cast(Function, numba.njit(nogil=True, **_OPTIONS)(function))


def source_digest() -> str:
    """A hash of every source of the simulator.

    numba keys its disk cache by the argument types and the file of the entry alone, so a change in another
    file would go unseen; a field of the rules carries this digest into the types (see layout.RULES).
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
