"""The game's side of Mission Gym's bridge, protocol version 1, in one file. Copy it next to your game.

It needs Python 3.10 and NumPy. A game is a class like `gymnasium.Env`, with or without Gymnasium:

    from mission_gym_bridge import box, discrete, serve

    class Game:
        observation_space = box((4,), "float32")
        action_space = discrete(2)
        def reset(self, *, seed=None, options=None): ...  # returns observation, info
        def step(self, action): ...  # returns observation, reward, terminated, truncated, info

    serve(Game)

Optional: get_state() and set_state(state); metadata; max_episode_steps, after which it truncates; render(),
which returns uint8 [height, width, 3], with a constructor that takes render_mode="rgb_array".
Output of the game goes to stderr, so that it can't break a message.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

VERSION = 1
SOCKET = "MISSION_GYM_SOCKET"  # environment variable: path of the Unix socket, if one is used
HEADER = struct.Struct("<I")  # length of a frame
_DEPTH = 64
_INTS = {"u": 0xCC, "i": 0xD0}


def box(
    shape: Any, dtype: str = "float32", low: Any = float("-inf"), high: Any = float("inf")
) -> dict[str, Any]:
    """Numbers. low, high: one bound for all, or a flat list."""
    return {"type": "box", "shape": list(shape), "dtype": dtype, "low": low, "high": high}


def discrete(n: int, start: int = 0) -> dict[str, Any]:
    """One of n categories."""
    return {"type": "discrete", "n": n, "start": start}


def multi_discrete(nvec: Any) -> dict[str, Any]:
    """Several categories at once."""
    return {"type": "multi_discrete", "nvec": list(nvec)}


def multi_binary(n: int) -> dict[str, Any]:
    """n bits."""
    return {"type": "multi_binary", "n": n}


def text(max_length: int) -> dict[str, Any]:
    """A string; only for observations."""
    return {"type": "text", "max_length": max_length}


def dict_of(**spaces: Any) -> dict[str, Any]:
    """Named spaces; messages have them in the order of their names."""
    return {"type": "dict", "spaces": spaces}


def tuple_of(*spaces: Any) -> dict[str, Any]:
    """A tuple of spaces."""
    return {"type": "tuple", "spaces": list(spaces)}


def serve(make: Callable[..., Any], max_games: int = 64) -> None:
    """Answer messages until the other side is gone.

    make: called for each game with --env-kwargs, and render_mode="rgb_array" if images are needed.
    max_games: the largest number of games in this process.
    """
    read, write = _open()
    answer = Games(make, max_games).answer
    while True:
        head = _read_exactly(read, HEADER.size)
        body = head and _read_exactly(read, HEADER.unpack(head)[0])
        if not body:
            return
        try:
            packed = pack(answer(unpack(body)))
        except Exception as error:  # noqa: BLE001  the other side reports it, and ends this process
            traceback.print_exc()
            packed = pack({"error": f"{type(error).__name__}: {error}"})
        try:
            write.write(HEADER.pack(len(packed)) + packed)
            write.flush()
        except BrokenPipeError:
            return


class Games:
    """The games of this process; answers messages."""

    def __init__(self, make: Callable[..., Any], max_games: int) -> None:
        self._make, self._max_games = make, max_games
        self._kwargs: dict[str, Any] = {}
        self._games: dict[int, Any] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one message."""
        methods = {
            "hello": self._hello,
            "reset": self._reset,
            "step": self._step,
            "render": self._render,
            "get_state": self._get_state,
            "set_state": self._set_state,
        }
        kind = message.get("type")
        if kind not in methods:
            return {"error": f"unknown message type {kind!r}"}
        return methods[kind](message)

    def _hello(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["version"] != VERSION:
            error = f"this game speaks version {VERSION} of the protocol, not {message['version']}"
            return {"version": VERSION, "error": error}
        self._kwargs = dict(message.get("kwargs") or {})
        if message.get("render"):
            self._kwargs["render_mode"] = "rgb_array"
        game = self._games[0] = self._make(**self._kwargs)
        self._obs, self._action = Values(game.observation_space), Values(game.action_space)
        metadata = {key: value for key, value in getattr(game, "metadata", {}).items() if _is_plain(value)}
        limit = getattr(getattr(game, "spec", None), "max_episode_steps", None)
        return {
            "version": VERSION,
            "name": type(getattr(game, "unwrapped", game)).__name__,
            "observation_space": self._obs.space,
            "action_space": self._action.space,
            "max_games": self._max_games,
            "state": hasattr(game, "get_state") and hasattr(game, "set_state"),
            "render": _can_render(game),
            "max_episode_steps": getattr(game, "max_episode_steps", limit),
            "metadata": metadata,
        }

    def _game(self, number: int) -> Any:
        if number not in self._games:
            self._games[number] = self._make(**self._kwargs)
        return self._games[number]

    def _reset(self, message: dict[str, Any]) -> dict[str, Any]:
        numbers = message["games"]
        seeds = message.get("seeds") or [None] * len(numbers)
        options = message.get("options") or [None] * len(numbers)
        rows = GameRows(self._obs, len(numbers))
        for row, number in enumerate(numbers):
            with rows.guard(row):
                obs, info = self._game(number).reset(seed=seeds[row], options=options[row])
                rows.write(row, obs, info)
        return rows.answer()

    def _step(self, message: dict[str, Any]) -> dict[str, Any]:
        numbers = message["games"]
        actions = self._action.read(message["actions"], len(numbers))
        rows = GameRows(self._obs, len(numbers), steps=True)
        for row, number in enumerate(numbers):
            with rows.guard(row):
                obs, reward, terminated, truncated, info = self._games[number].step(actions[row])
                rows.write(row, obs, info, float(reward), bool(terminated), bool(truncated))
        return rows.answer()

    def _render(self, message: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        frame = np.ascontiguousarray(self._games[message["game"]].render(), np.uint8)
        return {"shape": list(frame.shape), "pixels": frame.tobytes()}

    def _get_state(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"states": [self._games[number].get_state() for number in message["games"]]}

    def _set_state(self, message: dict[str, Any]) -> dict[str, Any]:
        for number, state in zip(message["games"], message["states"], strict=True):
            self._game(number).set_state(state)
        return {}


class Values:
    """Converts values of a space to and from messages: one array [G, *shape] per leaf."""

    def __init__(self, space: Any) -> None:
        self.space = describe_space(space)
        self._leaves = leaves_of(self.space)
        self._forms = [
            None if leaf["type"] == "text" else (dtype_of(leaf), shape_of(leaf)) for leaf in self._leaves
        ]

    def read(self, leaves: list[bytes], count: int) -> list[Any]:
        """Decode the action of each game, in Gymnasium's form."""
        import numpy as np

        columns: list[list[Any]] = []
        for leaf, form, data in zip(self._leaves, self._forms, leaves, strict=True):
            dtype, shape = form or ("", ())
            column = np.frombuffer(data, dtype).reshape(count, *shape)
            columns.append(column.tolist() if leaf["type"] == "discrete" else list(column.copy()))
        return [_nest(self.space, iter(row)) for row in zip(*columns, strict=True)]

    def make(self, count: int) -> list[Any]:
        """Make one array, or list of strings, per leaf for the values of `count` games."""
        import numpy as np

        return [
            [""] * count if form is None else np.zeros((count, *form[1]), form[0]) for form in self._forms
        ]


class GameRows:
    """An answer for several games, one row per game; a game that raises has its error instead."""

    def __init__(self, values: Values, count: int, steps: bool = False) -> None:
        import numpy as np

        self._space, self._obs = values.space, values.make(count)
        self._infos: list[Any] = [None] * count
        self._errors: list[str | None] = [None] * count
        self._reward = np.zeros(count, "<f8") if steps else None
        self._flags = np.zeros((2, count), np.uint8)
        self._row = 0

    def guard(self, row: int) -> GameRows:
        """Make an exception in the block the error of this row."""
        self._row = row
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        traceback.print_exception(kind, error, trace)
        self._errors[self._row] = f"{kind.__name__}: {error}"
        return True

    def write(
        self,
        row: int,
        obs: Any,
        info: Any,
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
    ) -> None:
        """Write the result of a game."""
        for array, value in zip(self._obs, _flatten(self._space, obs), strict=True):
            if not isinstance(array, list) and (shape := _shape(value)) != array.shape[1:]:
                raise ValueError(f"an observation has shape {shape}, but its space has {array.shape[1:]}")
            array[row] = value
        self._infos[row] = _plain_info(info) if info else None
        if self._reward is not None:
            self._reward[row] = reward
            self._flags[:, row] = terminated, truncated

    def answer(self) -> dict[str, Any]:
        """Return the message."""
        reply: dict[str, Any] = {"obs": [x if isinstance(x, list) else x.tobytes() for x in self._obs]}
        if self._reward is not None:
            reply["reward"] = self._reward.tobytes()
            reply["terminated"], reply["truncated"] = self._flags[0].tobytes(), self._flags[1].tobytes()
        if any(self._infos):
            reply["info"] = self._infos
        if any(self._errors):
            reply["errors"] = self._errors
        return reply


def describe_space(space: Any) -> dict[str, Any]:
    """Describe a Gymnasium space for the protocol; a description is returned as it is."""
    if isinstance(space, dict):
        return space
    kind = type(space).__name__
    if kind == "Box":
        low, high = ([float(x) for x in each.ravel()] for each in (space.low, space.high))
        ends = [each[0] if len(set(each)) == 1 else each for each in (low, high)]
        return box(space.shape, str(space.dtype), *ends)
    if kind == "Discrete":
        return discrete(int(space.n), int(space.start))
    if kind == "MultiDiscrete" and space.nvec.ndim == 1 and not space.start.any():
        return multi_discrete([int(n) for n in space.nvec])
    if kind == "MultiBinary" and isinstance(space.n, int):
        return multi_binary(space.n)
    if kind == "Text":
        return text(int(space.max_length))
    if kind == "Dict":
        return dict_of(**{key: describe_space(each) for key, each in space.spaces.items()})
    if kind == "Tuple":
        return tuple_of(*map(describe_space, space.spaces))
    raise TypeError(f"the bridge does not support the space {space}")


def leaves_of(space: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the spaces without parts, in the order of messages."""
    if space["type"] == "dict":
        return [leaf for key in sorted(space["spaces"]) for leaf in leaves_of(space["spaces"][key])]
    if space["type"] == "tuple":
        return [leaf for each in space["spaces"] for leaf in leaves_of(each)]
    return [space]


def dtype_of(leaf: dict[str, Any]) -> str:
    """Return the NumPy dtype of a leaf in messages, little-endian."""
    if leaf["type"] == "box":
        import numpy as np

        return str(np.dtype(leaf["dtype"]).newbyteorder("<").str)
    return "|i1" if leaf["type"] == "multi_binary" else "<i4"


def shape_of(leaf: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape of one game's leaf."""
    if leaf["type"] == "box":
        return tuple(leaf["shape"])
    if leaf["type"] == "discrete":
        return ()
    return (len(leaf["nvec"]),) if leaf["type"] == "multi_discrete" else (leaf["n"],)


def _nest(space: dict[str, Any], values: Any) -> Any:
    if space["type"] == "dict":
        return {key: _nest(space["spaces"][key], values) for key in sorted(space["spaces"])}
    if space["type"] == "tuple":
        return tuple(_nest(each, values) for each in space["spaces"])
    return next(values)


def _flatten(space: dict[str, Any], value: Any) -> list[Any]:
    if space["type"] == "dict":
        parts = [(space["spaces"][key], value[key]) for key in sorted(space["spaces"])]
    elif space["type"] == "tuple":
        parts = list(zip(space["spaces"], value, strict=True))
    else:
        return [value]
    return [leaf for each, inner in parts for leaf in _flatten(each, inner)]


def _plain_info(info: dict[str, Any]) -> dict[str, Any]:
    """Convert an info for a message: masks become bytes, and values that are not plain are dropped."""
    plain = {key: value for key, value in info.items() if key != "action_mask" and _is_plain(value)}
    if "action_mask" in info:
        plain["action_mask"] = _mask(info["action_mask"])
    return plain


def _mask(mask: Any) -> Any:
    import numpy as np

    if isinstance(mask, dict):
        return {key: _mask(each) for key, each in mask.items()}
    if isinstance(mask, tuple):
        return [_mask(each) for each in mask]
    return None if mask is None else np.asarray(mask, np.uint8).tobytes()


def _shape(value: Any) -> tuple[int, ...]:
    if hasattr(value, "shape"):
        return tuple(value.shape)
    import numpy as np

    return np.shape(value)


def _can_render(game: Any) -> bool:
    """Check the metadata too, because every Gymnasium environment has `render`."""
    modes = getattr(game, "metadata", {}).get("render_modes")
    return hasattr(game, "render") and (modes is None or "rgb_array" in modes)


def _is_plain(value: Any) -> bool:
    try:
        pack(value)
    except (TypeError, ValueError):
        return False
    return True


def _open() -> tuple[Any, Any]:
    """Return the files to read from and to write to."""
    if SOCKET in os.environ:
        link = socket.socket(socket.AF_UNIX)
        link.connect(os.environ[SOCKET])
        return link.makefile("rb"), link.makefile("wb")
    read, write = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # output of the game
    sys.stdout = sys.stderr
    return os.fdopen(read, "rb"), os.fdopen(write, "wb")


def _read_exactly(file: Any, count: int) -> bytes:
    data = file.read(count)
    return data if len(data) == count else b""


def pack(value: Any) -> bytes:
    """Encode None, bool, int, float, str, bytes, list, tuple, dict, and NumPy scalars and arrays as
    MessagePack."""
    out: list[bytes] = []
    _pack(value, out.append, 0)
    return b"".join(out)


def _pack(value: Any, put: Callable[[bytes], Any], depth: int) -> None:
    kind = type(value)  # the types of every step come first
    if kind is bytes:
        put(_head(len(value), 0, 0, 0xC4))
        put(value)
    elif kind is str:
        data = value.encode()
        put(_head(len(data), 0xA0, 32, 0xD9) + data)
    elif kind is int:
        put(_pack_int(value))
    elif depth > _DEPTH:
        raise ValueError(f"a value is nested deeper than {_DEPTH} levels")
    elif isinstance(value, list | tuple):
        put(_head(len(value), 0x90, 16, 0xDB))
        for each in value:
            _pack(each, put, depth + 1)
    elif isinstance(value, dict):
        put(_head(len(value), 0x80, 16, 0xDD))
        for key, each in value.items():
            if isinstance(key, tuple):  # it would become a list, which can't be a key
                raise TypeError(f"a tuple can't be sent as a key: {key!r}")
            _pack(key, put, depth + 1)
            _pack(each, put, depth + 1)
    elif value is None:
        put(b"\xc0")
    elif value is True or value is False:
        put(b"\xc3" if value else b"\xc2")
    elif isinstance(value, float):
        put(struct.pack(">Bd", 0xCB, value))
    elif isinstance(value, int):  # of a subclass, as those below may be
        put(_pack_int(int(value)))
    elif isinstance(value, str):
        _pack(str.__str__(value), put, depth)
    elif isinstance(value, bytes | bytearray | memoryview):
        _pack(bytes(value), put, depth)
    elif hasattr(value, "tolist"):
        _pack(value.tolist(), put, depth + 1)
    else:
        raise TypeError(f"a {type(value).__name__} can't be sent: {value!r}")


def _pack_int(value: int) -> bytes:
    if -32 <= value < 128:
        return bytes((value & 0xFF,))
    letters = "bhiq" if value < 0 else "BHIQ"
    for power, letter in enumerate(letters):
        bits = 8 << power
        if -(1 << (bits - 1)) <= value < (1 << bits):
            return struct.pack(">B" + letter, _INTS["i" if value < 0 else "u"] + power, value)
    raise ValueError(f"{value} does not fit into 64 bits")


def _head(size: int, short: int, below: int, code: int) -> bytes:
    """Encode the head of a string, bytes, list or map.

    code: of the form whose size has one byte, which lists and maps do not have.
    """
    if size < below:
        return bytes((short | size,))
    if size < 256 and code in (0xD9, 0xC4):
        return bytes((code, size))
    if size < 1 << 16:
        return struct.pack(">BH", code + 1, size)
    return struct.pack(">BI", code + 2, size)


def unpack(data: bytes) -> Any:
    """Decode the result of `pack`; ValueError for anything else."""
    try:
        value, end = _unpack(data, 0, 0)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"not MessagePack: {error}") from None
    if end != len(data):
        raise ValueError(f"not MessagePack: {len(data) - end} bytes follow the value")
    return value


_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_NUMBERS.update({0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"})
_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZED: dict[int, tuple[str, Any]] = {0xC5: (">H", bytes), 0xC6: (">I", bytes)}
_SIZED.update({0xD9: (">B", str), 0xDA: (">H", str), 0xDB: (">I", str)})
_SIZED.update({0xDC: (">H", list), 0xDD: (">I", list), 0xDE: (">H", dict), 0xDF: (">I", dict)})


def _unpack(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    code = data[at]
    at += 1
    kind: Any
    if code < 0x80:
        return code, at
    if code < 0xC0:
        if code < 0xA0:
            kind, size = (dict if code < 0x90 else list), code & 15
        else:
            kind, size = str, code & 31
    elif code == 0xC4:
        kind, size = bytes, data[at]
        at += 1
    elif code >= 0xE0:
        return code - 256, at
    elif code in _PLAIN:
        return _PLAIN[code], at
    elif code in _NUMBERS:
        layout = _NUMBERS[code]
        return struct.unpack_from(layout, data, at)[0], at + struct.calcsize(layout)
    elif code in _SIZED:
        layout, kind = _SIZED[code]
        (size,) = struct.unpack_from(layout, data, at)
        at += struct.calcsize(layout)
    else:
        raise ValueError(f"not MessagePack: byte 0x{code:02x}")
    end = at + size
    if end > len(data):
        raise ValueError("not MessagePack: it ends in the middle of a value")
    if kind is bytes:
        return data[at:end], end
    if kind is str:
        return data[at:end].decode(), end
    if depth >= _DEPTH:
        raise ValueError(f"not MessagePack: nested deeper than {_DEPTH} levels")
    if kind is list:
        values = []
        for _ in range(size):
            value, at = _unpack(data, at, depth + 1)
            values.append(value)
        return values, at
    pairs = {}
    for _ in range(size):
        key, at = _unpack(data, at, depth + 1)
        pairs[key], at = _unpack(data, at, depth + 1)
    return pairs, at
