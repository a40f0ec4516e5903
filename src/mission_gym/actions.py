"""The layout of an action: the numbers that a policy stores, and their conversion to the environment's
action."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ActionKind = Literal["categories", "binary", "box", "composite"]
MAX_CATEGORIES = 1 << 16  # of one choice: each is a network input or output
WIDEST = 1e6  # a Box bound beyond this counts as infinite


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """How the policy's numbers become an action of the environment.

    categories: Discrete (nvec of one entry, shape ()) and MultiDiscrete; the policy stores int64 [B, K].
    binary: MultiBinary; int64 [B, K] of zeros and ones.
    box: Box; float32 [B, K], unclipped, in policy units: -1..1 for finite bounds, the environment's units if
    a bound is infinite. Actions of an integer dtype are rounded.
    composite: Dict and Tuple; float32 [B, K]: the categories of all parts, then their bits, then their real
    numbers. The environment's action is a row of float64 here, its parts flat and in the order of the space;
    Dict and Tuple exist only in adapters.
    """

    kind: ActionKind
    shape: tuple[int, ...]  # of one action of the environment
    dtype: str
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    low: tuple[float, ...] = ()  # flat, box only
    high: tuple[float, ...] = ()
    name: str = ""  # of a part: its path in the action
    parts: tuple[ActionSpec, ...] = ()  # of a Dict or Tuple, in the order of the space
    joint: tuple[int, ...] = ()  # sizes of the categories that were joined into the first one of `nvec`

    @classmethod
    def of_parts(cls, parts: tuple[ActionSpec, ...]) -> ActionSpec:
        """The composite of simple actions."""
        return cls(
            kind="composite",
            shape=(sum(math.prod(part.shape) for part in parts),),
            dtype="float64",
            nvec=sum((part.nvec for part in parts), ()),
            low=sum((part.low for part in parts), ()),
            high=sum((part.high for part in parts), ()),
            parts=parts,
        )

    @property
    def num_bits(self) -> int:
        """How many of the K numbers are bits."""
        if self.kind == "composite":
            return sum(part.num_bits for part in self.parts)
        return math.prod(self.shape) if self.kind == "binary" else 0

    @property
    def num_reals(self) -> int:
        """How many of the K numbers are real; they come last."""
        return len(self.low)

    @property
    def num_stored(self) -> int:
        """K: numbers that the policy stores per action."""
        return len(self.nvec) + self.num_bits + self.num_reals

    @property
    def has_finite_bounds(self) -> bool:
        """Whether all real numbers are scaled to bounds of the environment."""
        return all(abs(bound) < WIDEST for bound in (*self.low, *self.high))

    @property
    def stored_dtype(self) -> str:
        return "float32" if self.kind in ("box", "composite") else "int64"

    def joined(self, *, with_bits: bool = False) -> ActionSpec:
        """The same actions with all categories, and optionally the bits, joined into one choice."""
        if self.kind == "categories" and len(self.nvec) == 1:
            return self
        sizes = (self.joint or self.nvec) + (2,) * (self.num_bits if with_bits else 0)
        left = self.num_reals + (0 if with_bits else self.num_bits)
        return replace(
            self, kind="composite" if left else "categories", nvec=(math.prod(sizes),), joint=sizes
        )

    def to_env(self, stored: Array) -> Array:
        """Convert stored actions [B, K] to the environment's [B, *shape]."""
        if self.joint:
            digits = np.unravel_index(stored[:, 0].astype(np.int64), self.joint)
            stored = np.column_stack([*digits, stored[:, 1:]])
        if self.parts:
            return self._gather_parts(stored)
        if self.kind == "box":
            middle, half, low, high = _scale_of(self.low, self.high, self.dtype)
            # Clipped before the cast: integers wrap around, and bounds of floats stay exact.
            stored = np.minimum(np.maximum(middle + stored * half, low), high)
            if self.dtype[0] in "iu":
                stored = np.rint(stored)
        elif any(self.start):
            stored = stored + np.asarray(self.start, stored.dtype)
        return stored.astype(self.dtype).reshape(len(stored), *self.shape)

    def _gather_parts(self, stored: Array) -> Array:
        """The actions of the parts, concatenated."""
        num_categories = sum(len(part.nvec) for part in self.parts)
        num_bits = sum(part.num_bits for part in self.parts)
        column = {"categories": 0, "binary": num_categories, "box": num_categories + num_bits}
        rows = []
        for part in self.parts:
            first = column[part.kind]
            column[part.kind] += part.num_stored
            numbers = stored[:, first : column[part.kind]].astype(part.stored_dtype)
            rows.append(part.to_env(numbers).reshape(len(stored), -1))
        return np.concatenate(rows, axis=1, dtype=np.float64)


@lru_cache(maxsize=16)
def _scale_of(low: tuple[float, ...], high: tuple[float, ...], dtype: str) -> tuple[Array, ...]:
    """Middle and half width of finite bounds, and the bounds, float64."""
    lows, highs = np.asarray(low), np.asarray(high)
    # Bounds near the largest float mean "unbounded": scaling to them would give huge actions.
    bounded = np.maximum(np.abs(lows), np.abs(highs)) < WIDEST
    with np.errstate(invalid="ignore"):  # inf - inf in the branch that is not taken
        middle = np.where(bounded, (lows + highs) * 0.5, 0.0)
        half = np.where(bounded, (highs - lows) * 0.5, 1.0)
    if dtype[0] in "iu" and float(largest := np.iinfo(dtype).max) > largest:
        # 2**63 - 1 becomes 2**63 as float64, which does not fit into int64.
        highs = np.minimum(highs, np.nextafter(float(largest), 0))
    return middle, half, lows, highs
