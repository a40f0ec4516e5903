"""Compilation with numba: without the GIL, without numba's own threads, and without fastmath but in
`sum_kernel`.

Threads that share compiled work synchronise by atomic counters in an int64 array; see the end of this file.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import extending
from numba.core import cgutils

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"error_model": "numpy"}  # a division that may raise would prevent SIMD
# Compiled code does not allocate, so reference counts are disabled: they cost an atomic operation per array
# argument, which took a third of the simulator's time.
_UNCOUNTED = {**_OPTIONS, "_nrt": False}
_intrinsic = cast(Callable[[Callable[..., Any]], Callable[..., Any]], extending.intrinsic)


def kernel(function: Function) -> Function:
    """Compile a function for use in compiled code; it is inlined into the entries that call it."""
    return cast(Function, numba.njit(**_UNCOUNTED)(function))


def sum_kernel(function: Function) -> Function:
    """Like `kernel`, for sums over long rows: additions may be reordered, which SIMD needs. NaN stays NaN."""
    return cast(Function, numba.njit(**_UNCOUNTED, fastmath={"reassoc"})(function))


def entry(function: Function) -> Function:
    """Compile a function that Python calls: it releases the GIL and is cached on disk."""
    return _cached(function, _UNCOUNTED)


def matrix_kernel(function: Function) -> Function:
    """Like `kernel`, with reference counts, which matrix products and views need."""
    return cast(Function, numba.njit(**_OPTIONS)(function))


def matrix_entry(function: Function) -> Function:
    """Like `entry`, with reference counts."""
    return _cached(function, _OPTIONS)


def _cached(function: Function, options: dict[str, Any]) -> Function:
    try:
        compiled: Any = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # no folder is writable, as in some containers: compile every time
        return cast(Function, numba.njit(nogil=True, **options)(function))
    file = compiled._cache._cache_file
    file._load_index = partial(_load_index, file._load_index)
    return cast(Function, compiled)


def _load_index(load: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """The index of a disk cache, empty if it names a class that this version does not have: numba looks the
    classes up before it notices that the index is old."""
    try:
        return load()
    except (AttributeError, ImportError):
        return {}


def name_sources(paths: Iterable[Path]) -> str:
    """Return a field name for an argument type of an entry: a hash of its sources and of this file.

    numba's disk cache considers only the argument types and the file of the entry, so it would miss a change
    in another file.
    """
    digest = hashlib.sha256()
    for path in sorted([*paths, Path(__file__)]):
        digest.update(path.read_bytes())
    return f"sources_{digest.hexdigest()[:12]}"


# Yields the core to another thread. A waiting loop must call it, because on a busy machine the thread that it
# waits for might not get a core.
yield_core = numba.types.ExternalFunction(
    "SwitchToThread" if sys.platform == "win32" else "sched_yield", numba.int32()
)


@_intrinsic
def atomic_read(typing: Any, array: Any, index: Any) -> Any:
    """atomic_read(array, index): return the current value of a cell."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_point(context, builder, array, args), "seq_cst", 8)

    return array.dtype(array, index), generate


@_intrinsic
def atomic_write(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """atomic_write(array, index, value): a thread that reads the value also sees all earlier writes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _point(context, builder, array, args), "seq_cst", 8)
        return context.get_dummy_value()

    return numba.void(array, index, array.dtype), generate


@_intrinsic
def atomic_add(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """atomic_add(array, index, value): add, and return the previous value."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _point(context, builder, array, args), args[2], "seq_cst")

    return array.dtype(array, index, array.dtype), generate


def _point(context: Any, builder: Any, array: Any, args: Any) -> Any:
    """Return the address of a cell."""
    view = context.make_array(array)(context, builder, args[0])
    return cgutils.get_item_pointer(context, builder, array, view, [args[1]])  # type: ignore[no-untyped-call]
