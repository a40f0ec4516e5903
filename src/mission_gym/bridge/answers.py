"""The rules for a game's answers, message by message, for training and for the conformance check.

In: unpacked answers. Out: values of the environment; ProtocolError describes a wrong answer.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mission_gym.bridge.clients.mission_gym_bridge import VERSION
from mission_gym.bridge.spaces import LeafCodec, Space, SpaceError, check_size, read_space
from mission_gym.data import Array
from mission_gym.errors import EnvFailure

_BYTES = {"float64": 8, "uint8": 1}
KNOWN = {  # fields of each answer
    "hello": {
        "version", "name", "observation_space", "action_space", "max_games", "state", "render",
        "max_episode_steps", "metadata",
    },
    "reset": {"obs", "info", "errors"},
    "step": {"obs", "reward", "terminated", "truncated", "info", "errors"},
    "render": {"shape", "pixels"},
    "get_state": {"states"},
    "set_state": set(),
}  # fmt: skip


class BridgeError(EnvFailure):
    """The game's process ended, hung, or broke the protocol; the text names the message."""


class GameError(EnvFailure):
    """One game reported an error; the other games of its process continue."""


class ProtocolError(Exception):
    """An answer breaks the protocol."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The handshake of a game's process."""

    name: str
    observation_space: Space
    action_space: Space
    observations: LeafCodec
    actions: LeafCodec
    max_games: int
    state: bool
    render: bool
    max_episode_steps: int | None
    metadata: dict[str, Any] = field(default_factory=dict)


class GameStep(NamedTuple):
    """The result of one game's reset or step. error: its exception, if it raised one."""

    obs: Any
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    error: str = ""


def read_hello(answer: dict[str, Any]) -> Hello:
    """Validate the handshake."""
    version = answer.get("version")
    if version != VERSION:
        spoken = f"version {version!r}" if "version" in answer else "no version"
        raise ProtocolError(f"it speaks {spoken} of the protocol; this Mission Gym speaks version {VERSION}")
    found: list[Space] = []
    for name in ("observation_space", "action_space"):
        try:
            check_size(answer.get(name), f'"{name}"')
            found.append(read_space(answer.get(name), f'"{name}"', is_action=name == "action_space"))
        except SpaceError as error:
            raise ProtocolError(str(error)) from None
    max_games = answer.get("max_games", 1)
    if type(max_games) is not int or max_games < 1:
        raise ProtocolError(f'"max_games" must be a number above 0, got {max_games!r}')
    limit = answer.get("max_episode_steps")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ProtocolError(f'"max_episode_steps" must be a number above 0 or nil, got {limit!r}')
    metadata = answer.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
        raise ProtocolError(f'"metadata" must be a map with names, got {metadata!r}'[:200])
    return Hello(
        name=str(answer.get("name", "game")),
        observation_space=found[0],
        action_space=found[1],
        observations=LeafCodec(found[0], answer["observation_space"]),
        actions=LeafCodec(found[1], answer["action_space"]),
        max_games=max_games,
        state=bool(answer.get("state", False)),
        render=bool(answer.get("render", False)),
        max_episode_steps=limit,
        metadata=metadata,
    )


def read_games(hello: Hello, answer: dict[str, Any], count: int, *, steps: bool) -> list[GameStep]:
    """Validate the answer to a reset or a step of `count` games."""
    fault = hello.observations.find_fault(answer.get("obs"), count)
    if fault:
        raise ProtocolError(f'"obs" {fault}')
    infos = _read_list(answer, "info", count, dict)
    errors = _read_list(answer, "errors", count, str)
    rewards, flags = [0.0] * count, [[False] * count] * 2
    if steps:
        rewards = list(struct.unpack(f"<{count}d", _read_column(answer, "reward", count, "float64")))
        flags = [_read_flags(answer, name, count) for name in ("terminated", "truncated")]
    observed = hello.observations.read(answer["obs"], count)
    shown = [{} if info is None else _read_masks(info) for info in infos]
    raised = [error or "" for error in errors]
    return [GameStep(*row) for row in zip(observed, shown, rewards, *flags, raised, strict=True)]


def read_frame(answer: dict[str, Any]) -> Array:
    """Validate an image: uint8 [height, width, 3]."""
    shape, pixels = answer.get("shape"), answer.get("pixels")
    is_shape = type(shape) is list and len(shape) == 3 and all(type(n) is int and n > 0 for n in shape)
    if not is_shape or shape[2] != 3:  # type: ignore[index]
        raise ProtocolError(f'"shape" must be [height, width, 3], got {shape!r}'[:200])
    assert isinstance(shape, list)
    if type(pixels) is not bytes or len(pixels) != math.prod(shape):
        got = f"{len(pixels)} bytes" if isinstance(pixels, bytes) else repr(pixels)
        raise ProtocolError(f'"pixels" must be {math.prod(shape)} bytes, a frame of {shape}, got {got}'[:200])
    return np.frombuffer(pixels, np.uint8).reshape(shape).copy()


def read_states(answer: dict[str, Any], count: int) -> list[Any]:
    """Validate states: plain values, one per game."""
    states = answer.get("states")
    if type(states) is not list or len(states) != count:
        raise ProtocolError(f'"states" must be a list of {count}, got {states!r}'[:200])
    return states


def _read_column(answer: dict[str, Any], name: str, count: int, dtype: str) -> bytes:
    data, size = answer.get(name), count * _BYTES[dtype]
    if type(data) is not bytes or len(data) != size:
        got = f"{len(data)} bytes" if isinstance(data, bytes) else repr(data)
        raise ProtocolError(f'"{name}" must be {size} bytes, {dtype} for each game, got {got}'[:200])
    return data


def _read_flags(answer: dict[str, Any], name: str, count: int) -> list[bool]:
    column = _read_column(answer, name, count, "uint8")
    if column.strip(b"\0\1"):  # something else than 0 and 1 is left
        raise ProtocolError(f'"{name}" must be a byte 0 or 1 for each game, got {list(column)}'[:200])
    return [flag == 1 for flag in column]


def _read_list(answer: dict[str, Any], name: str, count: int, kind: type) -> list[Any]:
    values = answer.get(name)
    if values is None:
        return [None] * count
    what = "map" if kind is dict else "string"
    if type(values) is not list or len(values) != count:
        rule = f"a list of {count}, a {what} or nil for each game"
        raise ProtocolError(f'"{name}" must be {rule}, got {values!r}'[:200])
    for value in values:
        if value is not None and type(value) is not kind:
            raise ProtocolError(f'"{name}" must hold a {what} or nil for each game, got {value!r}'[:200])
    return values


def _read_masks(info: dict[str, Any]) -> dict[str, Any]:
    if "action_mask" in info:
        sent = info["action_mask"]
        try:
            info["action_mask"] = _mask(sent)
        except (TypeError, ValueError, OverflowError):
            raise ProtocolError(f'"action_mask" must be bytes of 0 and 1, got {sent!r}'[:200]) from None
    return info


def _mask(sent: Any) -> Any:
    if isinstance(sent, bytes):
        return np.frombuffer(sent, np.uint8).astype(np.int8)
    if isinstance(sent, dict):
        return {key: _mask(each) for key, each in sent.items()}
    if isinstance(sent, list) and any(each is None or isinstance(each, bytes | dict | list) for each in sent):
        return tuple(_mask(each) for each in sent)
    return sent if sent is None else np.asarray(sent, np.int8)
