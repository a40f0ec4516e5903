"""Gymnasium spaces as flat leaves: paths, action layouts, and conversion of values in both directions.

An observation becomes a tuple of arrays in the order of the space: Dict by its keys, Tuple by position. A
Dict or Tuple action is a row of float64 [D], its parts flat and in the order of the space (`ActionSpec`,
composite). All conversions work on one value and on a batch, because a batch of a Dict is a Dict of batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem, itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.actions import MAX_CATEGORIES, ActionKind, ActionSpec
from mission_gym.data import Array, LeafKind, LeafSpec
from mission_gym.errors import EnvContractError

Space = gym.Space[Any]
Path = tuple[Any, ...]

_NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_EXACT = 1 << 53  # integers of a Dict or Tuple action are float64


def action_spec(space: Space) -> ActionSpec:
    """Return the layout of an action space: Discrete, MultiDiscrete, MultiBinary, Box, Dict or Tuple."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return _action_part(space, "")
    parts = tuple(_action_part(leaf, name_path(path)) for path, leaf in walk(space))
    if not parts:
        raise EnvContractError(f"action space {space} is empty; there is nothing to choose")
    return ActionSpec.of_parts(parts)


def _action_part(space: Space, name: str) -> ActionSpec:
    """Return the layout of a space that is an array of numbers; name: its path in a Dict or Tuple."""
    where = f"action {name!r}" if name else "action"
    remedy = "map a supported space to it in a wrapper (gymnasium.ActionWrapper)"
    if name:
        remedy = (
            "fill this part in, or choose it from a short list, in a wrapper (gymnasium.ActionWrapper); some "
            "environments have a keyword for it, such as MiniWoB++'s action_space_config=shi17"
        )
    check_not_empty(space, where)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        nvec, start = read_categories(space, where, f"split it into parts, or {remedy}")
        if name and max(map(abs, start)) >= _EXACT:
            raise EnvContractError(
                f"{where} space {space} starts at {max(start, key=abs)}; in a Dict or Tuple a category must "
                f"be below {_EXACT}; start at 0"
            )
        return ActionSpec("categories", space.shape or (), str(space.dtype), nvec, start, name=name)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("binary", space.shape, str(space.dtype), name=name)
    if isinstance(space, spaces.Box):
        low, high = (tuple(float(x) for x in bound.ravel()) for bound in (space.low, space.high))
        return ActionSpec("box", space.shape, str(space.dtype), low=low, high=high, name=name)
    raise EnvContractError(
        f"{where} space {type(space).__name__} is not supported; use Discrete, MultiDiscrete, MultiBinary "
        f"and Box, alone or in a Dict or Tuple; {remedy}"
    )


def array_leaf_specs(space: Space) -> tuple[LeafSpec, ...]:
    """Return the leaves of an observation space for `make_vec`: arrays of numbers of any size and dtype."""
    return tuple(_array_leaf_spec(leaf, name_path(path)) for path, leaf in walk(space))


def array_action_spec(space: Space) -> ActionSpec:
    """Return the layout of an action space for `make_vec`: an array of numbers, or a Dict or Tuple."""
    if isinstance(space, _NUMBERS):
        kind: ActionKind = "box" if isinstance(space, spaces.Box) else "categories"
        return ActionSpec(kind, space.shape or (), str(space.dtype))
    return action_spec(space)


def _array_leaf_spec(space: Space, name: str) -> LeafSpec:
    if not isinstance(space, _NUMBERS):
        where = f"observation {name!r}" if name else "observation"
        raise EnvContractError(
            f"{where} space {type(space).__name__} is not supported by make_vec; use Box, Discrete,"
            " MultiDiscrete and MultiBinary, alone or in a Dict or Tuple; convert it with a wrapper"
            " (gymnasium.ObservationWrapper)"
        )
    kind: LeafKind = "vector" if isinstance(space, spaces.Box) else "categories"
    return LeafSpec(name, space.shape or (), str(space.dtype), kind)


def make_flattener(
    space: Space, skip_key: str | None = None, missing: tuple[str, ...] = ()
) -> Callable[[Any], tuple[Any, ...]]:
    """Make a function from an observation to its leaves, in `leaf_specs` order and not yet checked.

    missing: names of leaves that are left out; the observation may lack them.
    """
    paths = [path for path, _ in walk(space, skip_key) if name_path(path) not in missing]
    if paths == [()]:
        return lambda obs: (obs,)
    if len(paths) > 1 and all(len(path) == 1 for path in paths):
        return itemgetter(*(path[0] for path in paths))
    return lambda obs: tuple(reduce(getitem, path, obs) for path in paths)


def make_unflattener(space: Space) -> Callable[[tuple[Any, ...]], Any]:
    """Make a function from leaves, single or batched, to the form of the space."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return itemgetter(0)
    return lambda leaves: _rebuild(space, iter(leaves))


def make_action_decoder(space: Space) -> Callable[[Array], Any] | None:
    """Make a function from a row [D], or rows [B, D], to an action of the space with its own arrays; None if
    an action is an array anyway."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return None
    rebuild = make_unflattener(space)
    cuts: list[tuple[slice, str, tuple[int, ...]]] = []
    end = 0
    for part in action_spec(space).parts:
        start, end = end, end + math.prod(part.shape)
        cuts.append((slice(start, end), part.dtype, part.shape))

    def decode(rows: Array) -> Any:
        batch = rows.shape[:-1]
        # `[()]` makes a NumPy scalar of an array without dimensions, like every other Discrete action.
        return rebuild(
            tuple([rows[..., cut].astype(dtype).reshape((*batch, *shape))[()] for cut, dtype, shape in cuts])
        )

    return decode


def make_action_encoder(space: Space) -> Callable[[Any], Array]:
    """Make a function from an action of the space to an array: the row [D] of a Dict or Tuple."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return np.asarray
    flatten = make_flattener(space)
    shapes = [part.shape for part in action_spec(space).parts]

    def encode(action: Any) -> Array:
        leaves = [np.asarray(leaf, np.float64) for leaf in flatten(action)]
        batch = leaves[0].shape[: leaves[0].ndim - len(shapes[0])]
        return np.concatenate([leaf.reshape(*batch, -1) for leaf in leaves], axis=-1)

    return encode


def mask_parts(action: ActionSpec) -> Array:
    """Return the start of each part of a flat action mask, for `np.logical_or.reduceat`."""
    return np.cumsum((0, *action.nvec[:-1]))


def walk(space: Space, skip_key: str | None = None) -> list[tuple[Path, Space]]:
    """List the leaves of a space with their paths, in the order of the space."""
    parts: list[tuple[Any, Space]]
    if isinstance(space, spaces.Dict):
        parts = [(key, part) for key, part in space.spaces.items() if key != skip_key]
    elif isinstance(space, spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        return [((), space)]
    return [((key, *path), leaf) for key, part in parts for path, leaf in walk(part)]


def name_path(path: Path) -> str:
    """Return the name of a leaf."""
    return ".".join(map(str, path))


def read_categories(
    space: spaces.Discrete | spaces.MultiDiscrete, where: str, remedy: str = "use Box or split it into parts"
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (nvec, start), flat; EnvContractError if there are too many categories."""
    sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
    nvec = tuple(int(n) for n in np.ravel(sizes))
    start = tuple(int(n) for n in np.ravel(space.start))
    if max(nvec) > MAX_CATEGORIES:
        raise EnvContractError(
            f"{where} space {space} has {max(nvec)} categories; at most {MAX_CATEGORIES} are supported, "
            f"because each becomes an input or an output of the network; {remedy}"
        )
    return nvec, start


def check_not_empty(space: Space, where: str) -> None:
    """Raise EnvContractError for a space without numbers."""
    if isinstance(space, _NUMBERS) and 0 in (space.shape or ()):
        raise EnvContractError(f"{where} space {space} is empty; it needs at least one number")


def _rebuild(space: Space, leaves: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _rebuild(part, leaves) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_rebuild(part, leaves) for part in space.spaces)
    return next(leaves)
