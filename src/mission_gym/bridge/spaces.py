"""Spaces as the protocol tells them, and values as they travel: raw little-endian arrays, one for each leaf.

A leaf is a space without parts, in the order of `leaves_of`; of several games it is one array [G, *shape].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from mission_gym.bridge.clients.mission_gym_bridge import dtype_of, leaves_of, shape_of
from mission_gym.data import Array
from mission_gym.errors import nearest

Space = spaces.Space[Any]
_TYPES = ("box", "discrete", "multi_discrete", "multi_binary", "text", "dict", "tuple")
_DTYPES = ("float32", "float64", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "bool")
_MAX_ELEMENTS = 1 << 27
_MAX_INT = (1 << 31) - 1  # choices travel as int32


class SpaceError(ValueError):
    """A space is not told as it should be."""


class AnyText(spaces.Text):
    """Text of any characters; Gymnasium's own has a set of them."""

    def contains(self, x: Any) -> bool:
        """Tell whether it is a string that is short enough."""
        return isinstance(x, str) and len(x) <= self.max_length


def read_space(told: Any, where: str, *, acts: bool = False) -> Space:
    """A space of Gymnasium's; SpaceError says what is wrong with what was told. acts: it is of actions."""
    if not isinstance(told, dict) or "type" not in told:
        raise SpaceError(f'{where} must be a map with a "type", got {_short(told)}')
    kind = told["type"]
    if kind not in _TYPES:
        hint = nearest(str(kind), _TYPES)
        raise SpaceError(f"{where} has the type {kind!r}{hint}; the types are {', '.join(_TYPES)}")
    if kind == "text" and acts:
        raise SpaceError(f"{where} is text, which can't be an action")
    if kind == "dict":
        parts = _get(told, "spaces", where, dict)
        if strange := [key for key in parts if not isinstance(key, str)]:
            raise SpaceError(f"{where} has a part with the name {_short(strange[0])}; use a text")
        return spaces.Dict(
            {key: read_space(parts[key], f"{where}.{key}", acts=acts) for key in sorted(parts)}
        )
    if kind == "tuple":
        each = _get(told, "spaces", where, list)
        return spaces.Tuple([read_space(part, f"{where}.{i}", acts=acts) for i, part in enumerate(each)])
    if kind == "discrete":
        n, start = _count(told, "n", where), told.get("start", 0)
        if type(start) is not int or not -_MAX_INT <= start <= _MAX_INT - n:
            raise SpaceError(f'"start" of {where} must be a whole number, got {_short(start)}')
        return spaces.Discrete(n, start=start)
    if kind == "multi_discrete":
        nvec = _get(told, "nvec", where, list)
        if not nvec or not all(type(n) is int and 0 < n <= _MAX_INT for n in nvec):
            what = "a list of numbers above 0 and below 2^31"
            raise SpaceError(f'"nvec" of {where} must be {what}, got {_short(nvec)}')
        return spaces.MultiDiscrete(nvec)
    if kind == "multi_binary":
        return spaces.MultiBinary(_count(told, "n", where))
    if kind == "text":
        return AnyText(_count(told, "max_length", where), min_length=0)
    return _read_box(told, where)


class Layout:
    """How values of a space travel."""

    def __init__(self, space: Space, told: dict[str, Any]) -> None:
        self._space = space
        self.leaves = leaves_of(told)
        self._parts = list(_leaf_spaces(space))
        is_text = [leaf["type"] == "text" for leaf in self.leaves]
        self._dtypes = [None if text else np.dtype(dtype_of(leaf)) for leaf, text in self._zip(is_text)]
        self._shapes = [() if text else shape_of(leaf) for leaf, text in self._zip(is_text)]
        self._sizes = [math.prod(shape) for shape in self._shapes]

    def _zip(self, others: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        return zip(self.leaves, others, strict=True)

    def pack(self, value: Any) -> list[bytes]:
        """One game's value as a list of raw leaves."""
        flat = list(_flatten(self._space, value))
        return [np.asarray(each, dtype).tobytes() for each, dtype in zip(flat, self._dtypes, strict=True)]

    def find_fault(self, told: Any, count: int) -> str:
        """What is wrong with the leaves of so many games, or nothing."""
        if type(told) is not list or len(told) != len(self.leaves):
            return f"must be a list of {_some(len(self.leaves), 'leaf', 'leaves')}, got {_short(told)}"
        for number, (data, dtype, size) in enumerate(zip(told, self._dtypes, self._sizes, strict=True)):
            if dtype is None:
                if type(data) is not list or len(data) != count or not all(type(x) is str for x in data):
                    return f"leaf {number} must be a list of {_some(count, 'string')}, got {_short(data)}"
            elif type(data) is not bytes:
                return f"leaf {number} must be bytes, got {_short(data)}"
            elif len(data) != count * size * dtype.itemsize:
                shape = list(self._shapes[number])
                return (
                    f"leaf {number} has {len(data)} bytes, expected {count * size * dtype.itemsize} "
                    f"({_some(count, 'game')} x {dtype.name}{shape})"
                )
        return ""

    def read(self, told: list[Any], count: int) -> list[Any]:
        """The value of each game, from leaves without a fault. Arrays are copies of their own."""
        columns: list[Any] = []
        for data, dtype, shape, part in zip(told, self._dtypes, self._shapes, self._parts, strict=True):
            if dtype is None:
                columns.append(data)
                continue
            column: Array = np.frombuffer(data, dtype).reshape(count, *shape)
            columns.append(column.astype(part.dtype, copy=True))  # native, writable, of the space's own dtype
        if len(columns) == 1 and self._space is self._parts[0]:
            return list(columns[0])
        return [_nest(self._space, iter([column[row] for column in columns])) for row in range(count)]


def _read_box(told: dict[str, Any], where: str) -> Space:
    shape = _get(told, "shape", where, list)
    if not all(type(n) is int and n > 0 for n in shape) or math.prod(shape) > _MAX_ELEMENTS:
        raise SpaceError(f'"shape" of {where} must be a list of sizes above 0, got {_short(shape)}')
    dtype = told.get("dtype", "float32")
    if dtype not in _DTYPES:
        hint = nearest(str(dtype), _DTYPES)
        raise SpaceError(f'"dtype" of {where} is {dtype!r}{hint}; use one of {", ".join(_DTYPES)}')
    ends = []
    for name, default in (("low", -math.inf), ("high", math.inf)):
        end = told.get(name, default)
        values = end if isinstance(end, list) else [end]
        if not all(type(x) in (int, float) for x in values) or len(values) not in (1, math.prod(shape)):
            what = f"a number, or a flat list of {math.prod(shape)}"
            raise SpaceError(f'"{name}" of {where} must be {what}, got {_short(end)}')
        bounds = np.broadcast_to(np.array(values, np.float64), (math.prod(shape),)).reshape(shape)
        if np.dtype(dtype).kind in "iub":
            whole = np.iinfo(np.int8 if dtype == "bool" else dtype)
            bounds = np.clip(bounds, 0 if dtype == "bool" else whole.min, 1 if dtype == "bool" else whole.max)
        ends.append(bounds.astype(dtype))
    try:
        return spaces.Box(ends[0], ends[1], tuple(shape), np.dtype(dtype).type)
    except (ValueError, AssertionError) as error:
        raise SpaceError(f"{where} is not a box ({error})") from None


def _leaf_spaces(space: Space) -> Iterator[Any]:
    if isinstance(space, spaces.Dict):
        for key in sorted(space.spaces):
            yield from _leaf_spaces(space.spaces[key])
    elif isinstance(space, spaces.Tuple):
        for each in space.spaces:
            yield from _leaf_spaces(each)
    else:
        yield space


def _nest(space: Space, values: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nest(space.spaces[key], values) for key in sorted(space.spaces)}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(each, values) for each in space.spaces)
    return next(values)


def _flatten(space: Space, value: Any) -> Iterator[Any]:
    if isinstance(space, spaces.Dict):
        for key in sorted(space.spaces):
            yield from _flatten(space.spaces[key], value[key])
    elif isinstance(space, spaces.Tuple):
        for each, part in zip(space.spaces, value, strict=True):
            yield from _flatten(each, part)
    else:
        yield value


def _get(told: dict[str, Any], key: str, where: str, kind: type) -> Any:
    value = told.get(key)
    if type(value) is not kind:
        raise SpaceError(
            f'"{key}" of {where} must be a {"map" if kind is dict else "list"}, got {_short(value)}'
        )
    if key == "spaces" and not value:
        raise SpaceError(f"{where} has no parts")
    return value


def _count(told: dict[str, Any], key: str, where: str) -> int:
    value = told.get(key)
    if type(value) is not int or not 0 < value <= _MAX_INT:
        raise SpaceError(f'"{key}" of {where} must be a number above 0 and below 2^31, got {_short(value)}')
    return value


def _some(count: int, what: str, several: str = "") -> str:
    return f"{count} {what if count == 1 else several or what + 's'}"


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    text = repr(value)
    if isinstance(value, list):
        text = f"a list of {len(value)}: {text}"
    return text if len(text) <= 80 else f"{text[:77]}..."
