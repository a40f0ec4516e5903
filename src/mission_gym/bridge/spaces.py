"""Spaces of the protocol, and values in messages: raw little-endian arrays, one per leaf.

A leaf is a space without parts, in the order of `leaves_of`; for several games it is one array [G, *shape].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from mission_gym.bridge.clients.mission_gym_bridge import dtype_of, leaves_of, shape_of
from mission_gym.data import Array
from mission_gym.errors import nearest

Space = spaces.Space[Any]
_TYPES = ("box", "discrete", "multi_discrete", "multi_binary", "text", "dict", "tuple")
_DTYPES = ("float32", "float64", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "bool")
_MAX_ELEMENTS = 1 << 25  # of all leaves of a space: an image of 4K has 2^24.6
_MAX_LEAVES = 1 << 12
_MAX_DIMS = 32  # NumPy's limit
_LETTER_BYTES = 4  # of a text, at most
_MAX_INT = (1 << 31) - 1  # categories are sent as int32


class SpaceError(ValueError):
    """A description of a space breaks the protocol."""


class AnyText(spaces.Text):
    """Text of any characters; Gymnasium's own Text has a fixed set."""

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a string that is short enough."""
        return isinstance(x, str) and len(x) <= self.max_length


def read_space(described: Any, where: str, *, is_action: bool = False) -> Space:
    """Make the Gymnasium space of a description; SpaceError names the fault."""
    if not isinstance(described, dict) or "type" not in described:
        raise SpaceError(f'{where} must be a map with a "type", got {_short(described)}')
    kind = described["type"]
    if kind not in _TYPES:
        hint = nearest(str(kind), _TYPES)
        raise SpaceError(f"{where} has the type {kind!r}{hint}; the types are {', '.join(_TYPES)}")
    if kind == "text" and is_action:
        raise SpaceError(f"{where} is text, which can't be an action")
    if kind == "dict":
        parts = _get(described, "spaces", where, dict)
        if wrong := [key for key in parts if not isinstance(key, str)]:
            raise SpaceError(f"{where} has a part with the name {_short(wrong[0])}; use a text")
        return spaces.Dict(
            {key: read_space(parts[key], f"{where}.{key}", is_action=is_action) for key in sorted(parts)}
        )
    if kind == "tuple":
        each = _get(described, "spaces", where, list)
        return spaces.Tuple(
            [read_space(part, f"{where}.{i}", is_action=is_action) for i, part in enumerate(each)]
        )
    if kind == "discrete":
        n, start = _count(described, "n", where), described.get("start", 0)
        if type(start) is not int or not -_MAX_INT <= start <= _MAX_INT - n:
            raise SpaceError(f'"start" of {where} must be a whole number, got {_short(start)}')
        return spaces.Discrete(n, start=start)
    if kind == "multi_discrete":
        nvec = _get(described, "nvec", where, list)
        if not nvec or not all(type(n) is int and 0 < n <= _MAX_INT for n in nvec):
            what = "a list of numbers above 0 and below 2^31"
            raise SpaceError(f'"nvec" of {where} must be {what}, got {_short(nvec)}')
        return spaces.MultiDiscrete(nvec)
    if kind == "multi_binary":
        return spaces.MultiBinary(_count(described, "n", where))
    if kind == "text":
        return AnyText(_count(described, "max_length", where), min_length=0)
    return _read_box(described, where)


class LeafCodec:
    """Converts values of a space to and from messages."""

    def __init__(self, space: Space, described: dict[str, Any]) -> None:
        self._space = space
        self._parts: list[Any] = list(_flatten(space, space))  # spaces are indexed like their values
        self.leaves = leaves_of(described)
        is_text = [leaf["type"] == "text" for leaf in self.leaves]
        pairs = list(zip(self.leaves, is_text, strict=True))
        self._dtypes = [None if text else np.dtype(dtype_of(leaf)) for leaf, text in pairs]
        self._shapes = [() if text else shape_of(leaf) for leaf, text in pairs]

    @property
    def size_bytes(self) -> int:
        """The most bytes of one game's value in a message."""
        sizes = [
            leaf["max_length"] * _LETTER_BYTES if dtype is None else math.prod(shape) * dtype.itemsize
            for leaf, dtype, shape in zip(self.leaves, self._dtypes, self._shapes, strict=True)
        ]
        return sum(sizes)

    def pack(self, value: Any) -> list[bytes]:
        """Encode one game's value as a list of raw leaves."""
        flat = _flatten(self._space, value)
        return [np.asarray(each, dtype).tobytes() for each, dtype in zip(flat, self._dtypes, strict=True)]

    def find_fault(self, leaves: Any, count: int) -> str:
        """Describe the first fault in the leaves of `count` games; empty without one."""
        if type(leaves) is not list or len(leaves) != len(self.leaves):
            return f"must be a list of {_some(len(self.leaves), 'leaf', 'leaves')}, got {_short(leaves)}"
        for number, (data, dtype, shape) in enumerate(zip(leaves, self._dtypes, self._shapes, strict=True)):
            if dtype is None:
                if type(data) is not list or len(data) != count or not all(type(x) is str for x in data):
                    return f"leaf {number} must be a list of {_some(count, 'string')}, got {_short(data)}"
            elif type(data) is not bytes:
                return f"leaf {number} must be bytes, got {_short(data)}"
            elif len(data) != (size := count * math.prod(shape) * dtype.itemsize):
                form = f"{_some(count, 'game')} x {dtype.name}{list(shape)}"
                return f"leaf {number} has {len(data)} bytes, expected {size} ({form})"
        return ""

    def read(self, leaves: list[Any], count: int) -> list[Any]:
        """Decode the value of each game from leaves without a fault; arrays are copies."""
        columns: list[Any] = []
        for data, dtype, shape, part in zip(leaves, self._dtypes, self._shapes, self._parts, strict=True):
            if dtype is None:
                columns.append(data)
                continue
            column: Array = np.frombuffer(data, dtype).reshape(count, *shape)
            columns.append(column.astype(part.dtype, copy=True))  # writable, in the space's own dtype
        if len(columns) == 1 and self._space is self._parts[0]:
            return list(columns[0])
        return [_nest(self._space, iter([column[row] for column in columns])) for row in range(count)]


def check_size(described: Any, where: str) -> None:
    """Refuse a description of a space that would take too much memory; SpaceError."""
    num_leaves, num_elements = _measure(described)
    for count, what, most in ((num_leaves, "leaves", _MAX_LEAVES), (num_elements, "elements", _MAX_ELEMENTS)):
        if count > most:
            raise SpaceError(f"{where} has {count} {what}, and at most {most} are allowed; make it smaller")


def _measure(described: Any) -> tuple[int, int]:
    """Count leaves and elements. Faults count as nothing; reading the space reports them."""
    if not isinstance(described, dict):
        return 1, 0
    parts = described.get("spaces")
    if isinstance(parts, dict | list):
        counts = [_measure(part) for part in (parts.values() if isinstance(parts, dict) else parts)]
        return sum(leaves for leaves, _ in counts), sum(elements for _, elements in counts)
    sizes = {"box": "shape", "multi_binary": "n", "text": "max_length"}
    size = described.get(sizes.get(str(described.get("type")), ""), 1)
    shape = size if isinstance(size, list) else [size]
    is_shape = len(shape) <= _MAX_DIMS and all(type(n) is int and n > 0 for n in shape)
    return 1, math.prod(shape) if is_shape else 0


def _read_box(described: dict[str, Any], where: str) -> Space:
    shape = _get(described, "shape", where, list)
    if len(shape) > _MAX_DIMS or not all(type(n) is int and n > 0 for n in shape):
        what = f"a list of at most {_MAX_DIMS} sizes above 0"
        raise SpaceError(f'"shape" of {where} must be {what}, got {_short(shape)}')
    dtype = described.get("dtype", "float32")
    if dtype not in _DTYPES:
        hint = nearest(str(dtype), _DTYPES)
        raise SpaceError(f'"dtype" of {where} is {dtype!r}{hint}; use one of {", ".join(_DTYPES)}')
    bounds: list[Any] = []
    for name, default in (("low", -math.inf), ("high", math.inf)):
        bound = described.get(name, default)
        values = bound if isinstance(bound, list) else [bound]
        if not all(type(x) in (int, float) for x in values) or len(values) not in (1, math.prod(shape)):
            what = f"a number, or a flat list of {math.prod(shape)}"
            raise SpaceError(f'"{name}" of {where} must be {what}, got {_short(bound)}')
        array = np.array(values, np.float64)
        if dtype == "bool":
            array = np.clip(array, 0, 1)
        elif np.dtype(dtype).kind in "iu":
            array = np.clip(array, np.iinfo(dtype).min, np.iinfo(dtype).max)
        bounds.append(np.broadcast_to(array.astype(dtype), math.prod(shape)).reshape(shape))
    try:
        return spaces.Box(bounds[0], bounds[1], tuple(shape), np.dtype(dtype).type)
    except (ValueError, AssertionError) as error:
        raise SpaceError(f"{where} is not a box ({error})") from None


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


def _get(described: dict[str, Any], key: str, where: str, kind: type) -> Any:
    value = described.get(key)
    if type(value) is not kind:
        what = "map" if kind is dict else "list"
        raise SpaceError(f'"{key}" of {where} must be a {what}, got {_short(value)}')
    if key == "spaces" and not value:
        raise SpaceError(f"{where} has no parts")
    return value


def _count(described: dict[str, Any], key: str, where: str) -> int:
    value = described.get(key)
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
