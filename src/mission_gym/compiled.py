"""How loops are compiled: numba without the GIL, without fastmath, without numba's own threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Nothing compiled here allocates, so reference counts, an atomic operation for each array passed on, are left
# out: they took a third of the simulator's time. A division that may raise would keep loops from SIMD.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}


def kernel(function: Function) -> Function:
    """Compile a part; it ends up inside the entries that call it."""
    return cast(Function, numba.njit(**_OPTIONS)(function))


def entry(function: Function) -> Function:
    """Compile a function that Python calls: it frees the GIL and is cached on disk."""
    try:
        return cast(Function, numba.njit(nogil=True, cache=True, **_OPTIONS)(function))
    except RuntimeError:  # no folder can be written to, as in some containers: compile every time
        return cast(Function, numba.njit(nogil=True, **_OPTIONS)(function))
