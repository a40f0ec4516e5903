"""The layout of an observation's leaves: numbers, images, grids of ids, texts, sequences.

Convolutions read Boxes with sides of at least 8: bytes, bits, and real numbers with a few channels; stacked
frames become channels. Grids of a few integers are ids: one-hot columns for short sides, otherwise one-hot
planes. Images over 128 pixels are stored smaller, as the mean of each square of pixels. Texts are columns of
hashed token counts without a vocabulary, because a linear layer over counts is a sum of word embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from mission_gym.data import TEXT_COLUMNS, Array, EnvSpec, LeafKind, LeafSpec
from mission_gym.env.spaces import Space, check_not_empty, make_flattener, name_path, read_categories, walk
from mission_gym.errors import EnvContractError

MAX_SEQUENCE = 64  # default for the number of elements of a sequence that are kept
_MIN_SIDE = 8  # for convolutions
_MAX_SIDE = 128  # of a stored image
_MAX_CHANNELS = 16  # of real numbers; an array with more is not an image
_MIN_GRID_SIDE, _MAX_GRID_SIDE = 3, 32
_ID_COUNTS = (4, 16, 32)  # numbers of ids are rounded up, because a few episodes do not show all
_MAX_ID_COLUMNS = 1 << 13  # of one-hot cells; beyond it they are numbers
_MAX_TOKENS = 64
_WORD = re.compile(r"\w+")
_REMEDIES: dict[type, str] = {
    spaces.Graph: "give a Sequence of node features, and one of edges as a Dict of features and the two node"
    " numbers, by a wrapper (gymnasium.ObservationWrapper)",
    spaces.OneOf: "give a Dict of all its parts and a Discrete that selects one of them, by a wrapper"
    " (gymnasium.ObservationWrapper)",
}
Convert = Callable[[Any], Array]


class _ImageShape(NamedTuple):
    sides: tuple[int, int]
    num_channels: int  # of one frame
    channels_last: bool


def leaf_specs(
    space: Space, skip_key: str | None = None, max_sequence: int = MAX_SEQUENCE
) -> tuple[LeafSpec, ...]:
    """Return the leaves of an observation space; a top-level `skip_key` (a mask) is not a leaf."""
    leaves = tuple(_leaf_spec(leaf, name_path(path), max_sequence) for path, leaf in walk(space, skip_key))
    if not leaves:
        raise EnvContractError(f"observation space {space} is empty; there is nothing to observe")
    return leaves


def _leaf_spec(space: Space, name: str, max_sequence: int) -> LeafSpec:
    if isinstance(space, spaces.Sequence):
        return _sequence_leaf(space, name, max_sequence)
    if isinstance(space, spaces.Box):
        check_not_empty(space, _where(name))
        return box_leaf(space, name)
    return _plain_leaf(space, name)


def _plain_leaf(space: Space, name: str) -> LeafSpec:
    """Return a leaf that is columns of numbers, in an observation or in an element of a sequence."""
    where = _where(name)
    check_not_empty(space, where)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        nvec, start = read_categories(space, where)
        return LeafSpec(name, space.shape or (), str(space.dtype), "categories", nvec, start)
    if isinstance(space, spaces.MultiBinary):
        return LeafSpec(name, space.shape, str(space.dtype), "binary")
    if is_text(space):  # a token and the pair that it ends, for each token
        return LeafSpec(name, (2 * TextReader(space).num_tokens,), "uint8", "text")
    remedy = _REMEDIES.get(type(space), "convert it with a wrapper (gymnasium.ObservationWrapper)")
    raise EnvContractError(
        f"{where} space {type(space).__name__} is not supported; use Box, Discrete, MultiDiscrete, "
        f"MultiBinary, Text, Sequence, or a Dict or Tuple of them; {remedy} [--wrap]"
    )


def _sequence_leaf(space: spaces.Sequence, name: str, max_sequence: int) -> LeafSpec:
    parts = []
    for path, each in walk(space.feature_space):
        inner = ".".join(filter(None, (name, "element", name_path(path))))
        if isinstance(each, spaces.Sequence):
            raise EnvContractError(
                f"{_where(inner)} is a Sequence inside a Sequence, which is not supported; give one Sequence"
                " whose elements name their group, by a wrapper (gymnasium.ObservationWrapper) [--wrap]"
            )
        if isinstance(each, spaces.Box):
            check_not_empty(each, _where(inner))
            kind: LeafKind = "binary" if each.dtype.kind == "b" else "vector"
            parts.append(with_bounds(LeafSpec(inner, each.shape, str(each.dtype), kind), each))
        else:
            parts.append(_plain_leaf(each, inner))
    leaf = LeafSpec(name, (), "uint8", "sequence", max_elements=max_sequence, parts=tuple(parts))
    return replace(leaf, shape=(leaf.record.itemsize,))


def _where(name: str) -> str:
    return f"observation {name!r}" if name else "observation"


def box_leaf(space: spaces.Box, name: str) -> LeafSpec:
    """Return the leaf of a Box, judged only by its shape, dtype and bounds."""
    dtype = str(space.dtype)
    plain = LeafSpec(name, space.shape, dtype, "binary" if space.dtype.kind == "b" else "vector")
    shape = _find_image(space.shape)
    if shape is None or min(shape.sides) < _MIN_GRID_SIDE:
        return plain
    low, high = float(space.low.min()), float(space.high.max())
    if space.dtype.kind in "iu" and 1 < high - low < _ID_COUNTS[-1]:
        return _make_grid(plain, shape, (int(high - low) + 1,) * shape.num_channels, int(low)) or plain
    if min(shape.sides) < _MIN_SIDE:
        return plain
    image = replace(plain, kind="image", channels_last=shape.channels_last)
    if dtype == "uint8":
        return _shrink(image if high > 1 else with_bounds(image, space), shape)
    if len(space.shape) == 2:  # a table as likely as an image
        return plain
    if space.dtype.kind == "f" and shape.num_channels <= _MAX_CHANNELS:
        return _shrink(with_bounds(image, space), shape)
    return image if space.dtype.kind == "b" else plain


def with_bounds(leaf: LeafSpec, space: spaces.Box) -> LeafSpec:
    """Return the leaf with the bounds that scale its numbers; without them if one is (nearly) infinite."""
    low, high = (np.asarray(bound, np.float64).ravel() for bound in (space.low, space.high))
    if not np.all((np.abs(low) < 1e6) & (np.abs(high) < 1e6) & (low < high)):
        return leaf
    if np.ptp(low) == np.ptp(high) == 0:
        low, high = low[:1], high[:1]
    return replace(leaf, low=tuple(low.tolist()), high=tuple(high.tolist()))


def may_hold_ids(leaf: LeafSpec) -> bool:
    """Return whether only its values can decide: small images and grids of ids have the same space."""
    if leaf.dtype != "uint8" or leaf.kind not in ("vector", "image") or leaf.nvec or leaf.high:
        return False
    shape = _find_image(leaf.shape)
    return shape is not None and all(_MIN_GRID_SIDE <= side <= _MAX_GRID_SIDE for side in shape.sides)


def is_image(highest: Array) -> bool:
    """Return whether the highest values of the cells include one that is too high for an id."""
    return bool(highest.max() >= _ID_COUNTS[-1])


def as_ids(leaf: LeafSpec, highest: Array) -> LeafSpec:
    """Return the leaf as ids, given the highest value seen in each cell; unchanged if they are not ids."""
    shape = _find_image(leaf.shape)
    if shape is None or is_image(highest) or highest.max() < 2:  # maybe a dark or a black-and-white image
        return leaf
    by_channel = highest.reshape(-1, highest.shape[-1]).max(0) if shape.channels_last else [highest.max()]
    nvec = [min(count for count in _ID_COUNTS if count > top) for top in by_channel]
    nvec = nvec * (shape.num_channels // len(nvec))
    return _make_grid(leaf, shape, tuple(nvec), 0) or leaf


def with_frames(leaf: LeafSpec, num: int) -> LeafSpec:
    """Return the leaf of an observation that stacks `num` frames along its first axis. If convolutions read
    them as channels, each frame is stored once."""
    is_stack = leaf.kind == "image" and len(leaf.shape) > 2 + leaf.channels_last
    return replace(leaf, frames=num) if is_stack else leaf


def shrink_image(leaf: LeafSpec, shape: tuple[int, ...], image: Array) -> Array:
    """Return the mean of each square of `leaf.shrink` pixels; incomplete squares are dropped.

    shape: of the image in its space; ValueError for another.
    """
    if np.shape(image) != shape:
        raise ValueError(f"an image has shape {np.shape(image)}, expected {shape}")
    by, first = leaf.shrink, _first_side(leaf)
    height, width = leaf.shape[first : first + 2]
    head = (slice(None),) * first
    total = np.zeros(leaf.shape, np.float32)
    for down in range(by):
        for right in range(by):
            rows, columns = (slice(at, at + by * size, by) for at, size in ((down, height), (right, width)))
            total += image[*head, rows, columns]
    total /= by * by
    return (np.rint(total) if leaf.dtype == "uint8" else total).astype(leaf.dtype)


def _find_image(shape: tuple[int, ...]) -> _ImageShape | None:
    """Find the sides and channels of [H, W], [H, W, C], [C, H, W], [k, H, W, C] or [k, C, H, W]."""
    if len(shape) == 2:
        return _ImageShape((shape[0], shape[1]), 1, False)
    if len(shape) not in (3, 4):
        return None
    first, second, last = shape[-3:]
    if last <= first:
        return _ImageShape((first, second), last, True)
    return _ImageShape((second, last), first, False)


def _make_grid(leaf: LeafSpec, shape: _ImageShape, nvec: tuple[int, ...], start: int) -> LeafSpec | None:
    """Return a leaf of ids, with `nvec` of each channel of a frame; None if it has too many columns."""
    num_frames, leaf = leaf.shape[0] if len(leaf.shape) == 4 else 1, replace(leaf, open_ended=True)
    if min(shape.sides) >= _MIN_SIDE:
        nvec = nvec * num_frames
        starts = (start,) * len(nvec)
        return replace(leaf, kind="image", nvec=nvec, start=starts, channels_last=shape.channels_last)
    num_cells = shape.sides[0] * shape.sides[1]
    of_frame = nvec * num_cells if shape.channels_last else tuple(n for n in nvec for _ in range(num_cells))
    cells = of_frame * num_frames
    if sum(cells) > _MAX_ID_COLUMNS:
        return None
    return replace(leaf, kind="categories", nvec=cells, start=(start,) * len(cells), channels_last=False)


def _shrink(leaf: LeafSpec, shape: _ImageShape) -> LeafSpec:
    by = min(-(-max(shape.sides) // _MAX_SIDE), min(shape.sides) // _MIN_SIDE)  # keeps the short side usable
    if by == 1:
        return leaf
    first = _first_side(leaf)
    sides = tuple(side // by for side in leaf.shape[first : first + 2])
    return replace(leaf, shape=(*leaf.shape[:first], *sides, *leaf.shape[first + 2 :]), shrink=by)


def _first_side(leaf: LeafSpec) -> int:
    """Return the axis of an image's height; its width follows."""
    return len(leaf.shape) - (3 if leaf.channels_last else 2)


def is_text(space: Space) -> bool:
    """Return whether the values of a space are strings: Gymnasium's Text, MiniGrid's missions, and others."""
    if isinstance(space, spaces.Text):
        return True
    if type(space).__module__.startswith("gymnasium.spaces."):
        return False
    if space.dtype is not None:
        return space.dtype.kind == "U"
    try:
        return isinstance(deepcopy(space).sample(), str)  # a copy, because sampling changes its generator
    except Exception:  # noqa: BLE001  border: the user's class
        return False


class TextReader:
    """Converts the strings of a space to columns.

    If the characters of the space include the blank or are unknown, tokens are words (letters and digits,
    case ignored) counted at any position; otherwise they are characters counted at their position. Pairs of
    neighbours are counted too. Only the first 64 tokens are read.
    """

    def __init__(self, space: Space) -> None:
        characters = getattr(space, "character_set", None)
        longest = getattr(space, "max_length", None) or 2 * _MAX_TOKENS
        self.by_words = characters is None or " " in characters
        self.num_tokens = min((longest + 1) // 2 if self.by_words else longest, _MAX_TOKENS)

    def __call__(self, text: Any) -> Array:
        """Return columns, uint8 [2 * num_tokens], 0 for none; TypeError if it is not a string."""
        if not isinstance(text, str):
            raise TypeError(f"expected a string, got {type(text).__name__}")
        return _read(str(text), self.by_words, self.num_tokens)


@lru_cache(maxsize=4096)  # most texts last for an episode
def _read(text: str, by_words: bool, num_tokens: int) -> Array:
    tokens = (_WORD.findall(text.casefold()) if by_words else list(text))[:num_tokens]
    columns = np.zeros((2, num_tokens), np.uint8)
    before = ""
    for position, token in enumerate(tokens):
        place = "" if by_words else str(position)
        columns[:, position] = _hash(place, token), _hash(before, token, "pair")
        before = token
    columns.flags.writeable = False  # it is shared by all readers of this text
    return columns.ravel()


@lru_cache(maxsize=1 << 16)  # bounded, because texts with numbers never repeat
def _hash(*parts: str) -> int:
    digest = blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % TEXT_COLUMNS


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
