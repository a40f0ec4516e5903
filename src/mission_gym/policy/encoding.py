"""From observation leaves to network inputs: one flat float32 row per observation, images beside it.

Vector leaves are normalised, categories become one-hot, zeros and ones stay; images keep their bytes
and are divided by 255 inside the network. Raw observations are stored in blocks; the statistics are
frozen during a block and its update, and merged afterwards in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mission_gym.data import Array, LeafSpec, Leaves, Weights
from mission_gym.policy.layout import PolicySpec

Shapes = dict[str, tuple[tuple[int, ...], str]]  # shape and dtype of arrays by name
CLIP = 10.0
_EPSILON = 1e-8


class Encoded(NamedTuple):
    """Network inputs: `flat` float32 [N, F] and one uint8 [N, C, H, W] per image leaf."""

    flat: Array
    images: tuple[Array, ...]


class Normalizer:
    """Running mean and variance of the flat features, float64. Entries that are not of a vector leaf
    keep mean 0 and variance 1, so that one expression serves the whole row."""

    def __init__(self, vector_entries: Array) -> None:
        self.vector_entries = vector_entries  # bool [F]
        self.count = 0.0
        self.mean = np.zeros(len(vector_entries))
        self.var = np.ones(len(vector_entries))
        self._publish()

    def _publish(self) -> None:
        self._mean32 = self.mean.astype(np.float32)
        self._scale32 = (1.0 / np.sqrt(self.var + _EPSILON)).astype(np.float32)
        self._scale32[~self.vector_entries] = 1.0

    def apply(self, flat: Array) -> Array:
        """Normalise [N, F] with the published statistics."""
        out = np.subtract(flat, self._mean32)
        out *= self._scale32
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

    def __init__(self, leaves: tuple[LeafSpec, ...], normalize: bool) -> None:
        self.leaves = leaves
        self.slices: dict[str, slice] = {}  # columns of each flat leaf
        vector_entries: list[bool] = []
        for leaf in leaves:
            if leaf.kind == "image":
                continue
            width = sum(leaf.nvec) if leaf.kind == "categories" else int(np.prod(leaf.shape, dtype=np.int64))
            self.slices[leaf.name] = slice(len(vector_entries), len(vector_entries) + width)
            vector_entries += [leaf.kind == "vector"] * width
        self.num_flat = len(vector_entries)
        self._flat_leaves = [(place, leaf) for place, leaf in enumerate(leaves) if leaf.kind != "image"]
        self._image_leaves = [(place, leaf) for place, leaf in enumerate(leaves) if leaf.kind == "image"]
        entries = np.array(vector_entries, bool)
        self.normalizer = Normalizer(entries) if normalize and entries.any() else None

    def shapes(self) -> Shapes:
        """The arrays of the normaliser, as weights carry them."""
        if self.normalizer is None:
            return {}
        return {name: (array.shape, "float64") for name, array in self.normalizer.arrays().items()}

    def flatten(self, obs: Leaves) -> Array:
        """The flat features [N, F] before normalisation."""
        parts = [_flat_leaf(leaf, obs[place]) for place, leaf in self._flat_leaves]
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
        self._encoder = Encoder(spec.leaves, spec.normalize_obs)

    def load(self, weights: Weights) -> None:
        """Take over the weights."""
        if self._encoder.normalizer is not None:
            self._encoder.normalizer.load(weights.arrays)
        self.version = weights.version

    def initial_state(self, num_rows: int) -> Leaves:
        """The state of rows whose episodes begin."""
        return self.spec.initial_state(num_rows)


def _flat_leaf(leaf: LeafSpec, array: Array) -> Array:
    num = len(array)
    if leaf.kind != "categories":
        return array.reshape(num, -1).astype(np.float32, copy=False)
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
