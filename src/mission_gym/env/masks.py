"""Action masks in every supported form, converted to one flat array [M].

A mask is flat over the categories of all parts, or over their combinations (a joint mask, flat or with one
dimension per part), or for a Dict or Tuple action a dict or tuple of the same structure.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from mission_gym.actions import MAX_CATEGORIES, ActionSpec
from mission_gym.data import Array, EnvSpec
from mission_gym.env.spaces import Path, Space, walk
from mission_gym.errors import EnvContractError, nearest

_UNFIT = np.empty(0, np.float64)  # has the shape of no mask


class MaskLayout:
    """Flattens the masks of an environment; the caller checks the result."""

    def __init__(self, spec: EnvSpec) -> None:
        action = spec.action
        self._nvec = spec.mask_nvec or action.nvec
        # After the categories of the masks there are digits that are always free: bits can't be masked.
        self._num_free = math.prod(action.nvec) // math.prod(self._nvec) if spec.mask_nvec else 0
        num_bits = max(self._num_free.bit_length() - 1, 0)
        self._grid = action.joint[: len(action.joint) - num_bits] if len(self._nvec) == 1 else ()
        paths = [path for path, _ in walk(spec.action_space)] if action.parts else []
        parts = [(path, part) for path, part in zip(paths, action.parts, strict=True) if part.nvec]
        # A mask that is joint over all parts can't be given part by part.
        self._parts = parts if sum((part.nvec for _, part in parts), ()) == self._nvec else []

    @property
    def is_needed(self) -> bool:
        """Whether masks may have another form than flat."""
        return bool(self._parts or self._grid or self._num_free)

    @property
    def expected(self) -> str:
        """A description of a valid mask."""
        flat = f"a flat array of {sum(self._nvec)} zeros and ones"
        return f"{flat}, or a dict or tuple of arrays like the action," if self._parts else flat

    def __call__(self, raw: Any, batch: tuple[int, ...] = ()) -> Array:
        """Return the mask [*batch, M], or an array of another shape if `raw` is not a mask."""
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

    def _stack_rows(self, raw: Any, num_envs: int) -> Array:
        """Stack masks that a vector collected as objects; zeros for an environment without one."""
        given = [_take_row(raw, row) for row in range(num_envs)]
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
    """Return the action layout for masks like `sample`: if they are joint, categories are joined.

    sample: a mask [*batch, ...], only its shapes matter; where: names the masks in an error.
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
    is_joint = len(action.nvec) > 1 and shape in ((*batch, num_joint), (*batch, *action.nvec))
    if is_joint and num_joint <= MAX_CATEGORIES:
        return action.joined()
    if is_joint:
        raise EnvContractError(
            f"{where} is joint over {num_joint} combinations; at most {MAX_CATEGORIES} are supported, "
            "because each becomes an output of the network; give a mask for each part, or smaller parts"
        )
    joint = f", or one over all combinations, [prod(nvec)] = [{num_joint}]" if len(action.nvec) > 1 else ""
    raise EnvContractError(
        f"{where} has shape {shape}, expected {(*batch, sum(action.nvec))}; a mask is flat: [n] for "
        f"Discrete, [sum(nvec)] for MultiDiscrete{joint}"
    )


def _fit_parts(
    action: ActionSpec, space: Space, sample: Any, batch: tuple[int, ...], where: str
) -> ActionSpec:
    """Fit each part to its own mask; a part is free if its mask is None or missing in a dict."""
    parts, known = [], set()
    for (path, _), part in zip(walk(space), action.parts, strict=True):
        given = _follow(sample, path)
        known |= {path[:depth] for depth in range(1, len(path) + 1)}
        if given is not None and not part.nvec:
            raise EnvContractError(
                f"{where} has an entry for {part.name!r}, which has no categories; masks are for Discrete "
                "and MultiDiscrete parts; leave it out, or give None"
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


def _follow(tree: Any, path: Path) -> Any:
    """Return the value at a path; None if the tree has none there."""
    for key in path:
        if isinstance(tree, dict):
            tree = tree.get(key)
        elif isinstance(tree, tuple) and key < len(tree):
            tree = tree[key]
        else:
            return None
    return tree


def _paths_in(tree: Any, path: Path = ()) -> list[Path]:
    """List the paths of a tree's entries; in infos of vectors, names with `_` in front are Gymnasium's
    own."""
    if isinstance(tree, dict):
        named = [(key, each) for key, each in tree.items() if not str(key).startswith("_")]
    elif isinstance(tree, tuple):
        named = list(enumerate(tree))
    else:
        return [path]
    return [found for key, each in named for found in _paths_in(each, (*path, key))]


def _has_objects(tree: Any) -> bool:
    """Return whether a vector collected masks that are tuples or None, as an array of objects."""
    if isinstance(tree, dict):
        return any(map(_has_objects, tree.values()))
    return isinstance(tree, np.ndarray) and tree.dtype == object


def _take_row(tree: Any, row: int) -> Any:
    if isinstance(tree, dict):
        return {key: _take_row(each, row) for key, each in tree.items() if not str(key).startswith("_")}
    return tree[row]


def _flat(raw: Any, batch: tuple[int, ...], grid: tuple[int, ...]) -> Array:
    """Convert a mask to an array; one with a dimension per joined category is flattened."""
    try:
        mask = np.asarray(raw)
    except ValueError:  # ragged
        return _UNFIT
    return mask.reshape(*batch, -1) if grid and mask.shape == (*batch, *grid) else mask


def _combine(first: Array, second: Array) -> Array:
    """Return the mask over pairs: both parts must be legal."""
    return (first[..., :, None] & second[..., None, :]).reshape(*first.shape[:-1], -1)
