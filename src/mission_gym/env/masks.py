"""Action masks as an environment gives them, brought to one flat array [M], and which of them fit an action.

A mask is flat over the categories of all parts, or over their combinations (a joint mask, flat or with a
dimension for each part), or for a Dict or Tuple action a dict or tuple like it.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from mission_gym.data import MAX_CATEGORIES, ActionSpec, Array, EnvSpec
from mission_gym.env.spaces import Path, Space, part_paths
from mission_gym.errors import EnvContractError, nearest

_UNFIT = np.empty(0, np.float64)  # of no mask's shape


class MaskLayout:
    """Lays the masks of an environment out flat, without judging them."""

    def __init__(self, spec: EnvSpec) -> None:
        action = spec.action
        self._nvec = spec.mask_nvec or action.nvec
        # Behind the categories of the masks come digits that are always free: bits, which no mask forbids.
        self._num_free = math.prod(action.nvec) // math.prod(self._nvec) if spec.mask_nvec else 0
        num_bits = max(self._num_free.bit_length() - 1, 0)
        self._grid = action.joint[: len(action.joint) - num_bits] if len(self._nvec) == 1 else ()
        parts = _category_parts(action, spec.action_space)
        # A mask that is joint over all parts can't come part by part.
        self._parts = parts if sum((part.nvec for _, part in parts), ()) == self._nvec else []

    @property
    def is_needed(self) -> bool:
        """Whether masks come in any other form than flat."""
        return bool(self._parts or self._grid or self._num_free)

    @property
    def expected(self) -> str:
        """What a mask has to be, in words."""
        flat = f"a flat array of {sum(self._nvec)} zeros and ones"
        return f"{flat}, or a dict or tuple of arrays like the action," if self._parts else flat

    def __call__(self, raw: Any, batch: tuple[int, ...] = ()) -> Array:
        """The mask [*batch, M], or an array of another shape if this is none."""
        if batch and _has_objects(raw):
            return self._stack_rows(raw, *batch)
        if self._parts and isinstance(raw, dict | tuple):
            mask = self._join_parts(raw, batch)
        else:
            mask = _flat(raw, batch, self._grid)
        if not self._num_free or mask.shape != (*batch, sum(self._nvec)) or mask.dtype.kind not in "biu":
            return mask
        edges = np.cumsum(self._nvec)[:-1]
        joint: Array = reduce(_combine, np.split(mask.astype(np.bool_), edges, axis=-1))
        return np.repeat(joint, self._num_free, axis=-1)

    def _stack_rows(self, raw: Any, num_rows: int) -> Array:
        """Masks that a vector gathered as objects, row by row; zeros for a row that gave none."""
        given = [_take_row(raw, row) for row in range(num_rows)]
        masks = [None if each is None else self(each) for each in given]
        shapes = {mask.shape for mask in masks if mask is not None}
        if len(shapes) != 1:
            return _UNFIT
        empty = np.zeros(shapes.pop(), np.bool_)
        return np.stack([empty if mask is None else mask for mask in masks])

    def _join_parts(self, raw: Any, batch: tuple[int, ...]) -> Array:
        found = []
        for path, part in self._parts:
            given = _follow(raw, path)
            shape = (*batch, sum(part.nvec))
            mask = np.ones(shape, np.bool_) if given is None else _flat(given, batch, part.joint)
            if mask.shape != shape:
                return _UNFIT
            found.append(mask)
        return np.concatenate(found, axis=-1)


def fit_masks(
    action: ActionSpec, space: Space, sample: Any, batch: tuple[int, ...], where: str
) -> ActionSpec:
    """The action as masks like this one need it: with joined categories where the masks are joint.

    sample: a mask [*batch, ...], of which the shapes count; where: names the masks in a refusal.
    """
    if not action.nvec:
        raise EnvContractError(
            f"{where} is for a {action.kind} action space; masks are for Discrete and MultiDiscrete; "
            "remove the mask"
        )
    if batch and _has_objects(sample):
        sample, batch = _take_row(sample, 0), ()
    if action.parts and isinstance(sample, dict | tuple):
        return _fit_parts(action, space, sample, batch, where)
    return _fit(action, _flat(sample, batch, ()).shape, batch, where)


def _fit(action: ActionSpec, shape: tuple[int, ...], batch: tuple[int, ...], where: str) -> ActionSpec:
    if shape == (*batch, sum(action.nvec)):
        return action
    num_joint = math.prod(action.nvec)
    if len(action.nvec) > 1 and shape in ((*batch, num_joint), (*batch, *action.nvec)):
        if num_joint > MAX_CATEGORIES:
            raise EnvContractError(
                f"{where} is joint over {num_joint} combinations; at most {MAX_CATEGORIES} are supported, "
                "since each becomes an output of the network; give a mask for each part, or smaller parts"
            )
        return action.joined()
    joint = ""
    if len(action.nvec) > 1:
        joint = f", or one over all combinations, [prod(nvec)] = [{num_joint}]"
    raise EnvContractError(
        f"{where} has shape {shape}, expected {(*batch, sum(action.nvec))}; a mask is flat: [n] for "
        f"Discrete, [sum(nvec)] for MultiDiscrete{joint}"
    )


def _fit_parts(
    action: ActionSpec, space: Space, sample: Any, batch: tuple[int, ...], where: str
) -> ActionSpec:
    """Each part by its own mask; a part whose mask is None, or left out of a dict, may do everything."""
    parts, known = [], set()
    for path, part in zip(part_paths(space), action.parts, strict=True):
        given = _follow(sample, path)
        known |= {path[:depth] for depth in range(1, len(path) + 1)}
        if given is not None and not part.nvec:
            raise EnvContractError(
                f"{where} has an entry for {part.name!r}, which is not a choice; masks are for Discrete and "
                "MultiDiscrete parts; leave it out, or give None"
            )
        if given is not None:
            part = _fit(part, _flat(given, batch, ()).shape, batch, f"{where}, {part.name!r},")
        parts.append(part)
    for path in _paths_in(sample):
        if path not in known:
            names = [part.name for part in action.parts if part.nvec]
            name = ".".join(map(str, path))
            raise EnvContractError(
                f"{where} has an entry {name!r}{nearest(name, names)}, which is not a part of the action; it "
                f"has {', '.join(names)}"
            )
    return ActionSpec.of_parts(tuple(parts))


def _category_parts(action: ActionSpec, space: Space) -> list[tuple[Path, ActionSpec]]:
    if not action.parts:
        return []
    paths = part_paths(space)
    return [(path, part) for path, part in zip(paths, action.parts, strict=True) if part.nvec]


def _follow(tree: Any, path: Path) -> Any:
    """What lies at a path; None where a mapping has nothing there."""
    for key in path:
        if isinstance(tree, dict):
            tree = tree.get(key)
        elif isinstance(tree, tuple) and key < len(tree):
            tree = tree[key]
        else:
            return None
    return tree


def _paths_in(tree: Any, path: Path = ()) -> list[Path]:
    """The paths of a tree's entries; names that begin with `_` are Gymnasium's own, in infos of vectors."""
    if isinstance(tree, dict):
        named = [(key, each) for key, each in tree.items() if not str(key).startswith("_")]
    elif isinstance(tree, tuple):
        named = list(enumerate(tree))
    else:
        return [path]
    return [found for key, each in named for found in _paths_in(each, (*path, key))]


def _has_objects(tree: Any) -> bool:
    """Whether a vector gathered masks that are tuples or None: Gymnasium's make arrays of objects of them."""
    if isinstance(tree, dict):
        return any(map(_has_objects, tree.values()))
    return isinstance(tree, np.ndarray) and tree.dtype == object


def _take_row(tree: Any, row: int) -> Any:
    if isinstance(tree, dict):
        return {key: _take_row(each, row) for key, each in tree.items() if not str(key).startswith("_")}
    return tree[row]


def _flat(raw: Any, batch: tuple[int, ...], grid: tuple[int, ...]) -> Array:
    """A mask as an array; one with a dimension for each joined category is made flat."""
    try:
        mask = np.asarray(raw)
    except ValueError:  # ragged
        return _UNFIT
    return mask.reshape(*batch, -1) if grid and mask.shape == (*batch, *grid) else mask


def _combine(first: Array, second: Array) -> Array:
    """The mask over pairs: what both allow."""
    return (first[..., :, None] & second[..., None, :]).reshape(*first.shape[:-1], -1)
