"""From an observation to the arrays that are stored, for training, evaluation and `predict`.

Most leaves are stored as the environment returns them. Texts become columns of hashed counts, sequences the
packed bytes of their first elements, large images smaller ones. The caller checks shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array, EnvSpec, LeafSpec
from mission_gym.env.leaves import TextReader, shrink_image
from mission_gym.env.spaces import Space, make_flattener

Convert = Callable[[Any], Array]


class ObsReader:
    """Reads observations of one environment. missing: names of leaves that are left out."""

    def __init__(self, spec: EnvSpec, missing: tuple[str, ...] = ()) -> None:
        self._flatten = make_flattener(spec.observation_space, spec.mask_key, missing)
        # Dict and Tuple spaces are indexed like their observations.
        self.spaces: tuple[Space, ...] = self._flatten(spec.observation_space)
        self.leaves = [leaf for leaf in spec.leaves if leaf.name not in missing]
        pairs = zip(self.leaves, self.spaces, strict=True)
        self._converts = {i: made for i, pair in enumerate(pairs) if (made := make_converter(*pair))}
        self.read: Callable[[Any], tuple[Any, ...]] = self._convert if self._converts else self._flatten

    @property
    def converts(self) -> bool:
        """Whether a leaf is stored in another form than the environment's."""
        return bool(self._converts)

    def _convert(self, obs: Any) -> tuple[Any, ...]:
        leaves = list(self._flatten(obs))
        for index, convert in self._converts.items():
            leaves[index] = convert(leaves[index])
        return tuple(leaves)

    def read_batch(self, obs: Any) -> tuple[Any, ...]:
        """Return leaves [B, ...] of a batch of Gymnasium's vectors, where strings and sequences are a
        tuple."""
        leaves = list(self._flatten(obs))
        for index, convert in self._converts.items():
            leaves[index] = np.stack([convert(value) for value in leaves[index]])
        return tuple(leaves)

    def is_single(self, obs: Any) -> bool:
        """Return whether `obs` is one observation and not a batch, judged by its first leaf."""
        leaf, first = self.leaves[0], self._flatten(obs)[0]
        if leaf.kind == "text":
            return isinstance(first, str)
        if leaf.kind == "sequence":
            try:  # as leniently as training: lists and other real numbers are accepted
                self._converts[0](first)
            except (TypeError, ValueError, KeyError, IndexError):
                return False
            return True
        return np.ndim(first) == len(leaf.shape)


def make_converter(leaf: LeafSpec, space: Space) -> Convert | None:
    """Make a function from values of a space to the stored leaf; None if they are stored unchanged."""
    if leaf.kind == "text":
        return TextReader(space)
    if leaf.kind == "sequence":
        assert isinstance(space, spaces.Sequence)
        return SequencePacker(leaf, space)
    return partial(shrink_image, leaf, space.shape or ()) if leaf.shrink > 1 else None


class SequencePacker:
    """Packs a sequence, stacked or not: its true length and its first elements."""

    def __init__(self, leaf: LeafSpec, space: spaces.Sequence) -> None:
        self._leaf, self._record = leaf, leaf.record
        self._flatten = make_flattener(space.feature_space)
        pairs = zip(leaf.parts, self._flatten(space.feature_space), strict=True)
        self._parts = [(f"{i}", part, make_converter(part, each)) for i, (part, each) in enumerate(pairs)]
        self._is_stacked = space.stack

    def __call__(self, value: Any) -> Array:
        """Return bytes [leaf.shape]; ValueError or TypeError if the value is not in the space."""
        if self._is_stacked:
            columns = self._flatten(value)
            length = len(columns[0])
        else:
            length = len(value)
            columns = tuple(zip(*map(self._flatten, value[: self._leaf.max_elements]), strict=True))
        packed = np.zeros((), self._record)
        packed["length"] = length
        kept = min(length, self._leaf.max_elements)
        if kept:
            for (field, part, convert), column in zip(self._parts, columns, strict=True):
                packed[field][:kept] = self._read(part, convert, column[:kept])
        return np.frombuffer(packed.tobytes(), np.uint8)

    def _read(self, part: LeafSpec, convert: Convert | None, column: Any) -> Array:
        got = np.asarray(column if convert is None else [convert(value) for value in column])
        if got.shape[1:] != part.shape:
            raise ValueError(f"an element has shape {got.shape[1:]}, expected {part.shape}")
        fits = np.can_cast(got.dtype, part.dtype, "same_kind")
        if not fits and not (part.kind == "categories" and got.dtype.kind in "iu"):
            raise ValueError(f"an element has dtype {got.dtype}, expected {part.dtype}")
        # Packed bytes are not checked later, so NaN and infinity must be found here.
        if got.dtype.kind == "f" and not np.isfinite(got).all():
            raise ValueError("an element has a number that is not finite")
        if part.kind == "categories":
            first, last = part.start, np.add(part.start, part.nvec) - 1
            categories = got.reshape(len(got), -1)
            if (categories < first).any() or (categories > last).any():
                raise ValueError(f"an element has a category outside of {list(first)} to {last.tolist()}")
        return got
