"""Gymnasium spaces to leaf and action layouts, and observations to leaves and back.

An observation becomes a tuple of arrays in the order of the space: Dict by its keys, Tuple by position.
The same flattener works on one observation and on a batch, since a batched Dict is a Dict of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from operator import getitem, itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import MAX_CATEGORIES, ActionKind, ActionSpec, Array, LeafKind, LeafSpec
from mission_gym.env.boxes import box_leaf, with_bounds
from mission_gym.env.texts import is_text, text_leaf
from mission_gym.errors import EnvContractError

Space = gym.Space[Any]
Path = tuple[Any, ...]

_NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
MAX_SEQUENCE = 64  # elements of a sequence that are kept, unless told
_EXACT = 1 << 53  # an integer of a Dict or Tuple action travels as float64


def leaf_specs(
    space: Space, skip_key: str | None = None, max_sequence: int = MAX_SEQUENCE
) -> tuple[LeafSpec, ...]:
    """Return the leaves of an observation space; a top-level `skip_key` (a mask) is not a leaf."""
    leaves = tuple(_leaf_spec(leaf, _name(path), max_sequence) for path, leaf in _walk(space, skip_key))
    if not leaves:
        raise EnvContractError(f"observation space {space} is empty; there is nothing to observe")
    return leaves


def action_spec(space: Space) -> ActionSpec:
    """Return the layout of an action space: Discrete, MultiDiscrete, MultiBinary, Box, Dict or Tuple."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return _action_part(space, "")
    parts = tuple(_action_part(leaf, _name(path)) for path, leaf in _walk(space))
    if not parts:
        raise EnvContractError(f"action space {space} is empty; there is nothing to choose")
    return ActionSpec.of_parts(parts)


def _action_part(space: Space, name: str) -> ActionSpec:
    """The layout of a space that is an array of numbers; name: its path in a Dict or Tuple."""
    where = f"action {name!r}" if name else "action"
    remedy = "let a wrapper (gymnasium.ActionWrapper) map a space that fits to it"
    if name:
        remedy = (
            "let a wrapper (gymnasium.ActionWrapper) fill this part in, or choose it from a short list; some "
            "environments have a keyword for it, as MiniWoB++ has action_space_config=shi17"
        )
    _refuse_empty(space, where)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        nvec, start = _categories(space, where, f"split it into parts, or {remedy}")
        if name and max(map(abs, start)) >= _EXACT:
            raise EnvContractError(
                f"{where} space {space} starts at {max(start, key=abs)}; in a Dict or Tuple a category is a "
                f"number below {_EXACT}; start at 0"
            )
        return ActionSpec("categories", space.shape or (), str(space.dtype), nvec, start, name=name)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("binary", space.shape, str(space.dtype), name=name)
    if isinstance(space, spaces.Box):
        low, high = (tuple(float(x) for x in bound.ravel()) for bound in (space.low, space.high))
        return ActionSpec("box", space.shape, str(space.dtype), low=low, high=high, name=name)
    raise EnvContractError(
        f"{where} space {type(space).__name__} is not supported; a policy chooses Discrete, MultiDiscrete, "
        f"MultiBinary and Box, alone or in a Dict or Tuple; {remedy}"
    )


def array_leaf_specs(space: Space) -> tuple[LeafSpec, ...]:
    """Return the leaves of an observation space for `make_vec`: arrays of numbers of any size and dtype."""
    return tuple(_array_leaf_spec(leaf, _name(path)) for path, leaf in _walk(space))


def array_action_spec(space: Space) -> ActionSpec:
    """Return the layout of an action space for `make_vec`: an array of numbers, or a Dict or Tuple."""
    if isinstance(space, _NUMBERS):
        kind: ActionKind = "box" if isinstance(space, spaces.Box) else "categories"
        return ActionSpec(kind, space.shape or (), str(space.dtype))
    return action_spec(space)


def make_flattener(
    space: Space, skip_key: str | None = None, missing: tuple[str, ...] = ()
) -> Callable[[Any], tuple[Any, ...]]:
    """Compile a function from an observation to its leaves, in `leaf_specs` order and not yet checked; those
    named in `missing` are left out, and the observation may lack them."""
    paths = [path for path, _ in _walk(space, skip_key) if _name(path) not in missing]
    if paths == [()]:
        return lambda obs: (obs,)
    if len(paths) > 1 and all(len(path) == 1 for path in paths):
        return itemgetter(*(path[0] for path in paths))
    return lambda obs: tuple(reduce(getitem, path, obs) for path in paths)


def make_unflattener(space: Space) -> Callable[[tuple[Any, ...]], Any]:
    """Compile a function that puts leaves, single or batched, back into the shape of the space."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return itemgetter(0)
    return lambda leaves: _rebuild(space, iter(leaves))


def part_paths(space: Space) -> list[Path]:
    """Where the parts of a Dict or Tuple lie, in the order of the space."""
    return [path for path, _ in _walk(space)]


def mask_parts(action: ActionSpec) -> Array:
    """Return where each part of a flat action mask begins, for `np.logical_or.reduceat`."""
    return np.cumsum((0, *action.nvec[:-1]))


def _rebuild(space: Space, leaves: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _rebuild(part, leaves) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_rebuild(part, leaves) for part in space.spaces)
    return next(leaves)


def _walk(space: Space, skip_key: str | None = None) -> list[tuple[Path, Space]]:
    """List the leaves of a space with their paths."""
    parts: list[tuple[Any, Space]]
    if isinstance(space, spaces.Dict):
        parts = [(key, part) for key, part in space.spaces.items() if key != skip_key]
    elif isinstance(space, spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        return [((), space)]
    return [((key, *path), leaf) for key, part in parts for path, leaf in _walk(part)]


def _name(path: Path) -> str:
    """How a leaf is called."""
    return ".".join(map(str, path))


def _leaf_spec(space: Space, name: str, max_sequence: int) -> LeafSpec:
    if isinstance(space, spaces.Sequence):
        return _sequence_leaf(space, name, max_sequence)
    if isinstance(space, spaces.Box):
        _refuse_empty(space, _where(name))
        return box_leaf(space, name)
    return _plain_leaf(space, name)


def _plain_leaf(space: Space, name: str) -> LeafSpec:
    """A leaf that is columns of numbers, in an observation or in an element of a sequence."""
    where = _where(name)
    _refuse_empty(space, where)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        nvec, start = _categories(space, where)
        return LeafSpec(name, space.shape or (), str(space.dtype), "categories", nvec, start)
    if isinstance(space, spaces.MultiBinary):
        return LeafSpec(name, space.shape, str(space.dtype), "binary")
    if is_text(space):
        return text_leaf(space, name)
    remedy = _REMEDIES.get(type(space), "convert it with a wrapper (gymnasium.ObservationWrapper)")
    raise EnvContractError(
        f"{where} space {type(space).__name__} is not supported; use Box, Discrete, MultiDiscrete, "
        f"MultiBinary, Text, Sequence, or a Dict or Tuple of them; {remedy} [--wrap]"
    )


_REMEDIES: dict[type, str] = {
    spaces.Graph: "give a Sequence of node features, and one of edges as a Dict of features and the two node"
    " numbers, by a wrapper (gymnasium.ObservationWrapper)",
    spaces.OneOf: "give a Dict of all its parts and a Discrete that tells which one counts, by a wrapper"
    " (gymnasium.ObservationWrapper)",
}


def _sequence_leaf(space: spaces.Sequence, name: str, max_sequence: int) -> LeafSpec:
    parts = []
    for path, each in _walk(space.feature_space):
        inner = ".".join(filter(None, (name, "element", _name(path))))
        if isinstance(each, spaces.Sequence):
            raise EnvContractError(
                f"{_where(inner)} is a Sequence inside a Sequence, which is not supported; give one Sequence"
                " whose elements name their group, by a wrapper (gymnasium.ObservationWrapper) [--wrap]"
            )
        if isinstance(each, spaces.Box):
            _refuse_empty(each, _where(inner))
            kind: LeafKind = "binary" if each.dtype.kind == "b" else "vector"
            parts.append(with_bounds(LeafSpec(inner, each.shape, str(each.dtype), kind), each))
        else:
            parts.append(_plain_leaf(each, inner))
    leaf = LeafSpec(name, (), "uint8", "sequence", max_elements=max_sequence, parts=tuple(parts))
    return replace(leaf, shape=(leaf.record.itemsize,))


def _where(name: str) -> str:
    return f"observation {name!r}" if name else "observation"


def _array_leaf_spec(space: Space, name: str) -> LeafSpec:
    if not isinstance(space, _NUMBERS):
        raise EnvContractError(
            f"{_where(name)} space {type(space).__name__} is not supported by make_vec; use Box, Discrete,"
            " MultiDiscrete and MultiBinary, alone or in a Dict or Tuple; convert it with a wrapper"
            " (gymnasium.ObservationWrapper)"
        )
    kind: LeafKind = "vector" if isinstance(space, spaces.Box) else "categories"
    return LeafSpec(name, space.shape or (), str(space.dtype), kind)


def _categories(
    space: spaces.Discrete | spaces.MultiDiscrete, where: str, remedy: str = "use Box or split it into parts"
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (nvec, start), flat."""
    sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
    nvec = tuple(int(n) for n in np.ravel(sizes))
    start = tuple(int(n) for n in np.ravel(space.start))
    if max(nvec) > MAX_CATEGORIES:
        raise EnvContractError(
            f"{where} space {space} has {max(nvec)} categories; at most {MAX_CATEGORIES} are supported, "
            f"since each becomes an input or an output of the network; {remedy}"
        )
    return nvec, start


def _refuse_empty(space: Space, where: str) -> None:
    if isinstance(space, _NUMBERS) and 0 in (space.shape or ()):
        raise EnvContractError(f"{where} space {space} is empty; it needs at least one number")
