"""Dict and Tuple actions: between a row of numbers, which is what crosses borders, and the space's own form.

A row is float64 [D], the parts flat and in the order of the space (`ActionSpec`, composite). Both ways work
on one action and on a batch, since a batch of a Dict is a Dict of batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.env.spaces import Space, action_spec, make_flattener, make_unflattener


def make_action_form(space: Space) -> Callable[[Array], Any] | None:
    """Compile a function from a row [D], or rows [B, D], to an action of the space with arrays of its own;
    None where an action is an array anyway."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return None
    rebuild = make_unflattener(space)
    cuts: list[tuple[slice, str, tuple[int, ...]]] = []
    end = 0
    for part in action_spec(space).parts:
        start, end = end, end + math.prod(part.shape)
        cuts.append((slice(start, end), part.dtype, part.shape))

    def form(rows: Array) -> Any:
        batch = rows.shape[:-1]
        # `[()]` makes a NumPy number of an array without dimensions, as every other Discrete action is one.
        return rebuild(
            tuple([rows[..., cut].astype(dtype).reshape((*batch, *shape))[()] for cut, dtype, shape in cuts])
        )

    return form


def make_action_row(space: Space) -> Callable[[Any], Array]:
    """Compile a function from an action of the space to an array: its row [D] where it is a Dict or Tuple."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return np.asarray
    flatten = make_flattener(space)
    shapes = [part.shape for part in action_spec(space).parts]

    def to_row(action: Any) -> Array:
        leaves = [np.asarray(leaf, np.float64) for leaf in flatten(action)]
        batch = leaves[0].shape[: leaves[0].ndim - len(shapes[0])]
        return np.concatenate([leaf.reshape(*batch, -1) for leaf in leaves], axis=-1)

    return to_row
