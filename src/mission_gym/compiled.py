"""How loops are compiled: numba without the GIL, without fastmath, without numba's own threads.

Threads that share compiled work meet at counters in an int64 array, with the operations at the end.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import extending
from numba.core import cgutils

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"error_model": "numpy"}  # a division that may raise would keep loops from SIMD
# Nothing compiled here allocates, so reference counts, an atomic operation for each array passed on, are left
# out: they took a third of the simulator's time.
_UNCOUNTED = {**_OPTIONS, "_nrt": False}
_intrinsic = cast(Callable[[Callable[..., Any]], Callable[..., Any]], extending.intrinsic)


def kernel(function: Function) -> Function:
    """Compile a part; it ends up inside the entries that call it."""
    return cast(Function, numba.njit(**_UNCOUNTED)(function))


def entry(function: Function) -> Function:
    """Compile a function that Python calls: it frees the GIL and is cached on disk."""
    return _cached(function, _UNCOUNTED)


def matrix_kernel(function: Function) -> Function:
    """As `kernel`, for products of matrices and for views, which numba can't do without counting."""
    return cast(Function, numba.njit(**_OPTIONS)(function))


def matrix_entry(function: Function) -> Function:
    """As `entry`, likewise."""
    return _cached(function, _OPTIONS)


def _cached(function: Function, options: dict[str, Any]) -> Function:
    try:
        return cast(Function, numba.njit(nogil=True, cache=True, **options)(function))
    except RuntimeError:  # no folder can be written to, as in some containers: compile every time
        return cast(Function, numba.njit(nogil=True, **options)(function))


def name_sources(paths: Iterable[Path]) -> str:
    """A field name for a type that an entry takes: a hash of its sources and of this file.

    numba keys its disk cache by the argument types and the file of the entry alone, so a change in another
    file would go unseen.
    """
    digest = hashlib.sha256()
    for path in sorted([*paths, Path(__file__)]):
        digest.update(path.read_bytes())
    return f"sources_{digest.hexdigest()[:12]}"


# Let another thread have this core: whoever waits in a loop must, or on a busy machine those who are waited
# for would not get one.
yield_core = numba.types.ExternalFunction(
    "SwitchToThread" if sys.platform == "win32" else "sched_yield", numba.int32()
)


@_intrinsic
def atomic_read(typing: Any, array: Any, index: Any) -> Any:
    """atomic_read(array, index): the cell as other threads left it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_point(context, builder, array, args), "seq_cst", 8)

    return array.dtype(array, index), generate


@_intrinsic
def atomic_write(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """atomic_write(array, index, value): what was written before is seen by whoever reads the value."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _point(context, builder, array, args), "seq_cst", 8)
        return context.get_dummy_value()

    return numba.void(array, index, array.dtype), generate


@_intrinsic
def atomic_add(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """atomic_add(array, index, value): add, and return what was there before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _point(context, builder, array, args), args[2], "seq_cst")

    return array.dtype(array, index, array.dtype), generate


def _point(context: Any, builder: Any, array: Any, args: Any) -> Any:
    """The address of a cell."""
    view = context.make_array(array)(context, builder, args[0])
    return cgutils.get_item_pointer(context, builder, array, view, [args[1]])  # type: ignore[no-untyped-call]
