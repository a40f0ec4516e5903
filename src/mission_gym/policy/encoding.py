"""From observation leaves to network inputs: one flat float32 row per observation, images beside it.

Vector leaves are normalised, categories become one-hot, zeros and ones stay; images keep their bytes
and are divided by 255 inside the network. What the critic alone sees comes last. Raw observations are stored
in blocks, in their own type, and the mean is subtracted in it: 5,000,000.01 and 5,000,000.02 are one number
as float32. The statistics are frozen during a block and its update, and merged afterwards in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array, LeafSpec, Leaves, Weights
from mission_gym.policy.layout import PolicySpec

Shapes = dict[str, tuple[tuple[int, ...], str]]  # shape and dtype of arrays by name
CLIP = 10.0
_EPSILON = 1e-8
_CONSTANT = 1e-12  # a deviation below that share of the mean is rounding: the entry never moved


class Encoded(NamedTuple):
    """Network inputs: `flat` float32 [N, F] and one uint8 [N, C, H, W] per image leaf."""

    flat: Array
    images: tuple[Array, ...]


class Normalizer:
    """Running mean and variance of the flat features, float64. Entries that are not of a vector leaf
    keep mean 0 and variance 1, so that one expression serves the whole row.

    dtype: of the features before the mean is subtracted, float32 or float64.
    """

    def __init__(self, vector_entries: Array, dtype: type[np.floating[Any]] = np.float32) -> None:
        self.vector_entries = vector_entries  # bool [F]
        self._dtype, self._is_wide = dtype, dtype is not np.float32
        self.count = 0.0
        self.mean = np.zeros(len(vector_entries))
        self.var = np.ones(len(vector_entries))
        self._publish()

    def _publish(self) -> None:
        self._mean = self.mean.astype(self._dtype)
        self._scale = (1.0 / np.sqrt(self.var + _EPSILON)).astype(np.float32)
        # A flag that was never set has no deviation: it counts as it is when it first moves, not as 10,000.
        self._scale[~self.vector_entries | (self.var <= (_CONSTANT * self.mean) ** 2)] = 1.0

    def apply(self, flat: Array) -> Array:
        """Normalise [N, F] with the published statistics; float32."""
        out = np.subtract(flat, self._mean)
        if self._is_wide:
            out = out.astype(np.float32)
        out *= self._scale
        np.maximum(out, -CLIP, out=out)  # half the time of np.clip
        return np.minimum(out, CLIP, out=out)

    def merge(self, flat: Array) -> None:
        """Add the rows [N, F] to the statistics (Chan's parallel formula)."""
        rows = flat[:, self.vector_entries].astype(np.float64)
        count, total = float(len(rows)), self.count + len(rows)
        if not count or not rows.shape[1]:
            return
        delta = rows.mean(axis=0) - self.mean[self.vector_entries]
        if self.count:
            old = self.var[self.vector_entries] * self.count
            spread = old + rows.var(axis=0) * count + delta**2 * self.count * count / total
        else:
            spread = rows.var(axis=0) * count
        self.mean[self.vector_entries] += delta * count / total
        self.var[self.vector_entries] = spread / total
        self.count = total
        self._publish()

    def arrays(self) -> dict[str, Array]:
        return {
            "normalizer.count": np.array(self.count),
            "normalizer.mean": self.mean.copy(),
            "normalizer.var": self.var.copy(),
        }

    def load(self, arrays: dict[str, Array]) -> None:
        self.count = float(arrays["normalizer.count"])
        self.mean = np.array(arrays["normalizer.mean"], np.float64)
        self.var = np.array(arrays["normalizer.var"], np.float64)
        self._publish()


class Encoder:
    """Turns leaves [N, ...] into `Encoded`, for both forms of the policy and for the learner."""

    def __init__(
        self,
        leaves: tuple[LeafSpec, ...],
        normalize: bool,
        critic_leaves: tuple[str, ...] = (),
        *,
        for_actor: bool = False,
    ) -> None:
        """for_actor: what the critic alone sees is not read, and may be missing."""
        hidden = [leaf.name in critic_leaves for leaf in leaves]
        # What the actor sees of a row is its beginning.
        places = sorted(range(len(leaves)), key=hidden.__getitem__)
        if for_actor:
            places = [place for place in places if not hidden[place]]
        self._flat_leaves = [(place, leaves[place]) for place in places if leaves[place].kind != "image"]
        self._image_leaves = [(place, leaves[place]) for place in places if leaves[place].kind == "image"]
        self.images = tuple(leaf for _, leaf in self._image_leaves)
        self.slices: dict[str, slice] = {}  # columns of each flat leaf
        vector_entries: list[bool] = []
        for _, leaf in self._flat_leaves:
            width = leaf.num_features
            self.slices[leaf.name] = slice(len(vector_entries), len(vector_entries) + width)
            vector_entries += [leaf.kind == "vector"] * width
        self.num_flat = len(vector_entries)
        self._num_stored = sum(leaf.num_features for leaf in leaves)  # columns of the statistics in weights
        entries = np.array(vector_entries, bool)
        # Where float32 holds every number of every leaf, nothing is gained by more.
        wide = any(leaf.kind == "vector" and not np.can_cast(leaf.dtype, np.float32) for leaf in leaves)
        self._dtype: type[np.floating[Any]] = np.float64 if normalize and wide else np.float32
        self.normalizer = Normalizer(entries, self._dtype) if normalize and entries.any() else None

    def shapes(self) -> Shapes:
        """The arrays of the normaliser, as weights carry them."""
        if self.normalizer is None:
            return {}
        arrays = self.normalizer.arrays()
        return {name: ((self._num_stored,) * array.ndim, "float64") for name, array in arrays.items()}

    def load(self, weights: Weights) -> None:
        """Take over the statistics of its own columns, which are the first."""
        if self.normalizer is not None:
            arrays = {name: weights.arrays[name] for name in self.normalizer.arrays()}
            self.normalizer.load(
                {name: array[: self.num_flat] if array.ndim else array for name, array in arrays.items()}
            )

    def flatten(self, obs: Leaves) -> Array:
        """The flat features [N, F] before normalisation: float64 where a leaf that is normalised needs it."""
        parts = [_flat_leaf(leaf, obs[place], self._dtype) for place, leaf in self._flat_leaves]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(obs[0]), 0), np.float32)

    def encode(self, obs: Leaves) -> Encoded:
        """The network inputs for leaves [N, ...]."""
        flat = self.flatten(obs)
        if self.normalizer is not None:
            flat = self.normalizer.apply(flat)
        return Encoded(flat, tuple([_channels_first(leaf, obs[place]) for place, leaf in self._image_leaves]))


class EncodingPolicy:
    """What every acting form has: its layout, the version of its weights, and how it reads observations."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.version = -1
        self._encoder = Encoder(spec.leaves, spec.normalize_obs, spec.critic_leaves, for_actor=True)

    def load(self, weights: Weights) -> None:
        """Take over the weights."""
        self._encoder.load(weights)
        self.version = weights.version

    def initial_state(self, num_rows: int) -> Leaves:
        """The state of rows whose episodes begin."""
        return self.spec.initial_state(num_rows)


def _flat_leaf(leaf: LeafSpec, array: Array, dtype: type[np.floating[Any]]) -> Array:
    num = len(array)
    if leaf.kind != "categories":
        return array.reshape(num, -1).astype(dtype, copy=False)
    # One-hot of every part: column = start of the part + (value - first category).
    starts = np.concatenate([[0], np.cumsum(leaf.nvec)[:-1]]).astype(np.int64)
    columns = array.reshape(num, -1).astype(np.int64) - np.asarray(leaf.start, np.int64) + starts
    out = np.zeros((num, sum(leaf.nvec)), np.float32)
    np.put_along_axis(out, columns, 1.0, axis=1)
    return out


def _channels_first(leaf: LeafSpec, array: Array) -> Array:
    if len(leaf.shape) == 2:
        return array[:, None]
    return np.moveaxis(array, -1, 1) if leaf.channels_last else array
