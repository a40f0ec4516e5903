"""From observation leaves to network inputs: one flat float32 row per observation, images and sequences
aside.

Vector leaves are normalised, categories become one-hot, texts become counts, zeros and ones stay. Images keep
their bytes; the network divides them by 255. Leaves that only the critic reads come last. Blocks store raw
observations in their own dtype, and the mean is subtracted in it: 5,000,000.01 and 5,000,000.02 are one
number as float32. Statistics are frozen during a block and its update, and merged afterwards in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import TEXT_COLUMNS, ActOut, Array, FrameIndex, LeafSpec, Leaves, Weights
from mission_gym.policy.layout import PolicySpec

Convert = Callable[[Array], Array]
Shapes = dict[str, tuple[tuple[int, ...], str]]  # shape and dtype of arrays by name
CLIP = 10.0
_EPSILON = 1e-8
_CONSTANT = 1e-12  # a standard deviation below this share of the mean is rounding: the entry is constant


class Encoded(NamedTuple):
    """Network inputs.

    flat: float32 [N, F].
    shaped: one array per leaf that is not flat. Images are [N, C, H, W]: bytes, ids, zeros and ones
    unchanged, else float32. Sequences are float32 [N, L, E].
    frame_index: for `shaped`. An indexed leaf holds frames [M, C, H, W], which are joined into images.
    """

    flat: Array
    shaped: tuple[Array, ...]
    frame_index: FrameIndex = ()

    def rows(self, rows: slice) -> Encoded:
        """Some of the N, as views; not for frames."""
        assert not self.frame_index
        return Encoded(self.flat[rows], tuple([array[rows] for array in self.shaped]))


class Normalizer:
    """Running mean and variance of the flat features, float64. Entries of other leaves than vectors keep mean
    0 and variance 1, so that one expression serves the whole row.

    std: the divisors. The standard deviations, but with a floor: half of the divisor before a merge, or the
    largest distance from the mean if that is less. So the inputs of a rare flag at most double between two
    updates. An entry that never moved has the divisor 1, and one that does not move in a block keeps its own.
    dtype: of the features before the mean is subtracted, float32 or float64.
    """

    def __init__(self, vector_entries: Array, dtype: type[np.floating[Any]] = np.float32) -> None:
        self.vector_entries = vector_entries  # bool [F]
        self._dtype, self._is_wide = dtype, dtype is not np.float32
        self.count = 0.0
        self.mean = np.zeros(len(vector_entries))
        self.var = np.ones(len(vector_entries))
        self.std = np.ones(len(vector_entries))
        self._publish()

    def _publish(self) -> None:
        self._mean = self.mean.astype(self._dtype)
        self._scale = (1.0 / self.std).astype(np.float32)

    def apply(self, flat: Array) -> Array:
        """Normalise features [N, F]; float32."""
        out = np.subtract(flat, self._mean)
        if self._is_wide:
            out = out.astype(np.float32)
        out *= self._scale
        np.maximum(out, -CLIP, out=out)  # half the time of np.clip
        return np.minimum(out, CLIP, out=out)

    def merge(self, flat: Array) -> None:
        """Add features [N, F] to the statistics (Chan's parallel formula)."""
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
        mean = self.mean[self.vector_entries] + delta * count / total
        var = spread / total
        std = np.sqrt(var + _EPSILON)
        # Rounding does not count as movement. A flag that was never set enters unscaled, not as 10,000.
        std[var <= (_CONSTANT * mean) ** 2] = 1.0
        if self.count:
            low, high, old = rows.min(axis=0), rows.max(axis=0), self.std[self.vector_entries]
            floor = np.minimum(old / 2, np.maximum(high - mean, mean - low))
            std = np.maximum(std, np.where(low < high, floor, old))
        self.mean[self.vector_entries] = mean
        self.var[self.vector_entries] = var
        self.std[self.vector_entries] = std
        self.count = total
        self._publish()

    def arrays(self) -> dict[str, Array]:
        return {
            "normalizer.count": np.array(self.count),
            "normalizer.mean": self.mean.copy(),
            "normalizer.var": self.var.copy(),
            "normalizer.std": self.std.copy(),
        }

    def load(self, arrays: dict[str, Array]) -> None:
        self.count = float(arrays["normalizer.count"])
        self.mean, self.var, self.std = (
            np.array(arrays[f"normalizer.{name}"], np.float64) for name in ("mean", "var", "std")
        )
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
        """for_actor: leaves that only the critic reads are skipped, and may be missing."""
        hidden = [leaf.name in critic_leaves for leaf in leaves]
        # The actor reads the first columns of a row.
        order = sorted(range(len(leaves)), key=hidden.__getitem__)
        if for_actor:
            order = [number for number in order if not hidden[number]]
        flat = [(number, leaves[number]) for number in order if leaves[number].is_flat]
        self._shaped_leaves = [(number, leaves[number]) for number in order if not leaves[number].is_flat]
        self.shaped = tuple(leaf for _, leaf in self._shaped_leaves)
        self.slices: dict[str, slice] = {}  # columns of each flat leaf
        vector_entries: list[bool] = []
        for _, leaf in flat:
            width = leaf.num_features
            self.slices[leaf.name] = slice(len(vector_entries), len(vector_entries) + width)
            vector_entries += [leaf.kind == "vector"] * width
        self.num_flat = len(vector_entries)
        self._num_stored = sum(leaf.num_features for leaf in leaves)  # columns of the normaliser's arrays
        entries = np.array(vector_entries, bool)
        # float64 only if a vector leaf holds numbers that float32 can't.
        wide = any(leaf.kind == "vector" and not np.can_cast(leaf.dtype, np.float32) for leaf in leaves)
        self._dtype: type[np.floating[Any]] = np.float64 if normalize and wide else np.float32
        self.normalizer = Normalizer(entries, self._dtype) if normalize and entries.any() else None
        self._flatten = [(number, _make_flat(leaf, self._dtype)) for number, leaf in flat]
        self._shape = [(number, _make_shaped(leaf)) for number, leaf in self._shaped_leaves]

    def shapes(self) -> Shapes:
        """Shapes and dtypes of the normaliser's arrays in the weights."""
        if self.normalizer is None:
            return {}
        arrays = self.normalizer.arrays()
        return {name: ((self._num_stored,) * array.ndim, "float64") for name, array in arrays.items()}

    def load(self, weights: Weights) -> None:
        """Load the statistics of this encoder's columns, which come first."""
        if self.normalizer is not None:
            arrays = {name: weights.arrays[name] for name in self.normalizer.arrays()}
            self.normalizer.load(
                {name: array[: self.num_flat] if array.ndim else array for name, array in arrays.items()}
            )

    def flatten(self, obs: Leaves, frame_index: FrameIndex = ()) -> Array:
        """The flat features [N, F] before normalisation; float64 if a vector leaf needs it."""
        parts = [convert(obs[leaf]) for leaf, convert in self._flatten]
        if len(parts) == 1:
            return parts[0]
        if parts:
            return np.concatenate(parts, axis=1)
        rows = next((index for index in frame_index if index is not None), obs[0])
        return np.zeros((len(rows), 0), np.float32)

    def encode(self, obs: Leaves, frame_index: FrameIndex = ()) -> Encoded:
        """The network inputs of leaves [N, ...], or of frames and their index."""
        flat = self.encode_flat(obs, frame_index)
        if not frame_index:
            return Encoded(flat, tuple([convert(obs[leaf]) for leaf, convert in self._shape]))
        indices = tuple(frame_index[leaf] for leaf, _ in self._shape)
        shaped = [
            convert(obs[leaf]) if index is None else _shape_image(spec.frame, obs[leaf][:, None])
            for (leaf, convert), index, spec in zip(self._shape, indices, self.shaped, strict=True)
        ]
        return Encoded(flat, tuple(shaped), indices)

    def encode_flat(self, obs: Leaves, frame_index: FrameIndex = ()) -> Array:
        """The flat inputs only: all that an MLP reads."""
        flat = self.flatten(obs, frame_index)
        return flat if self.normalizer is None else self.normalizer.apply(flat)

    def count_cut(self, obs: Leaves) -> int | None:
        """The number of sequences in leaves [..., *leaf.shape] that had more elements than are kept; None
        without sequences."""
        lengths = [
            (np.ascontiguousarray(obs[number][..., :4]).view(np.int32), leaf)  # the first field of a record
            for number, leaf in self._shaped_leaves
            if leaf.kind == "sequence"
        ]
        return sum(int((length > leaf.max_elements).sum()) for length, leaf in lengths) if lengths else None


class EncodingPolicy(ABC):
    """The base of every acting form: layout, version of the weights, encoder."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.version = -1
        self._encoder = Encoder(spec.leaves, spec.normalize_obs, spec.critic_leaves, for_actor=True)

    def load(self, weights: Weights) -> None:
        """Use these weights from now on."""
        self._encoder.load(weights)
        self.version = weights.version

    @abstractmethod
    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        """Actions for leaves [B, ...]. noise: [B, K] to explore, None to play greedily. state: the memory."""

    def initial_state(self, num_rows: int) -> Leaves:
        """The memory of rows whose episodes begin."""
        return self.spec.initial_state(num_rows)


def _make_flat(leaf: LeafSpec, dtype: type[np.floating[Any]]) -> Convert:
    """The function that turns a leaf [N, ...] into its columns [N, F]."""
    if leaf.kind == "text":
        return _count_columns
    return _OneHot(leaf) if leaf.kind == "categories" else partial(_numbers, dtype)


def _numbers(dtype: type[np.floating[Any]], array: Array) -> Array:
    return array.reshape(len(array), -1).astype(dtype, copy=False)


class _OneHot:
    """One-hot encoding of every part: column = start of the part + (value - first category)."""

    def __init__(self, leaf: LeafSpec) -> None:
        first, sizes = np.asarray(leaf.start, np.int64), np.asarray(leaf.nvec, np.int64)
        starts = np.cumsum(sizes) - sizes
        self._width = int(sizes.sum())
        self._shift = starts - first
        # Here 0 is not a category; it marks an empty row or element.
        blank = (first > 0) | (first + sizes <= 0)
        self._blank = (blank, starts) if blank.any() else None
        self._limits = (starts, starts + sizes - 1) if leaf.open_ended else None

    def __call__(self, array: Array) -> Array:
        num = len(array)
        columns = array.reshape(num, -1).astype(np.int64) + self._shift
        if self._blank is not None:
            blank, starts = self._blank
            columns = np.where(blank & (columns == self._shift), starts, columns)
        if self._limits is not None:
            np.clip(columns, *self._limits, out=columns)
        out = np.zeros((num, self._width), np.float32)
        out[np.arange(num)[:, None], columns] = 1.0
        return out


def _count_columns(columns: Array) -> Array:
    """How often each hashed column occurs in a text, float32 [N, TEXT_COLUMNS]; 0 is padding."""
    num = len(columns)
    bins = columns + np.arange(num)[:, None] * (TEXT_COLUMNS + 1)
    counts = np.bincount(bins.ravel(), minlength=num * (TEXT_COLUMNS + 1))
    return counts.reshape(num, -1)[:, 1:].astype(np.float32)


def _make_shaped(leaf: LeafSpec) -> Convert:
    """The function that turns a leaf that is not flat into its network input."""
    return _Elements(leaf) if leaf.kind == "sequence" else partial(_shape_image, leaf)


def _shape_image(leaf: LeafSpec, array: Array) -> Array:
    if leaf.nvec:
        image = _channels_first(leaf, array) - np.reshape(leaf.start, (-1, 1, 1)).astype(array.dtype)
        ids: Array = np.clip(image, 0, np.reshape(leaf.nvec, (-1, 1, 1)) - 1)
        return ids.astype(np.uint8)
    if array.dtype.kind == "f" or leaf.high:
        array = _scale(leaf, array)
    return _channels_first(leaf, array)


class _Elements:
    """Elements of sequences [N, L, E]: the columns of their parts, then 1; all 0 for a missing element."""

    def __init__(self, leaf: LeafSpec) -> None:
        self._leaf = leaf
        self._flat = [_make_flat(part, np.float32) for part in leaf.parts]

    def __call__(self, array: Array) -> Array:
        leaf, num, most = self._leaf, len(array), self._leaf.max_elements
        packed = np.ascontiguousarray(array).view(leaf.record)[:, 0]
        is_present = np.arange(most) < packed["length"][:, None]
        out = np.empty((num, most, leaf.num_element_features), np.float32)
        first = 0
        for field, (part, flatten) in enumerate(zip(leaf.parts, self._flat, strict=True)):
            values = packed[f"{field}"]
            if part.kind == "vector":
                values = _scale(part, values)
            columns = flatten(values.reshape(num * most, *part.shape))
            out[:, :, first : first + part.num_features] = columns.reshape(num, most, -1)
            first += part.num_features
        out[:, :, -1] = 1.0
        out *= is_present[:, :, None]
        return out


def _scale(leaf: LeafSpec, array: Array) -> Array:
    """Real numbers without running statistics: scaled to 0..1 by their bounds, or without bounds their
    logarithm, sgn(x) log(1 + |x|)."""
    if not leaf.high:
        numbers: Array = np.sign(array) * np.log1p(np.abs(array))
        return numbers.astype(np.float32, copy=False)
    shape = () if len(leaf.high) == 1 else array.shape[-len(leaf.shape) :]
    low, high = (np.reshape(bound, shape) for bound in (leaf.low, leaf.high))
    scaled: Array = (array - low) / (high - low)
    return scaled.astype(np.float32, copy=False)


def _channels_first(leaf: LeafSpec, array: Array) -> Array:
    """Images as [N, C, H, W]; the frames of a stack become channels."""
    if len(leaf.shape) == 2:
        return array[:, None]
    if leaf.channels_last:
        array = np.moveaxis(array, -1, -3)
    return array if array.ndim == 4 else array.reshape(len(array), -1, *array.shape[-2:])
