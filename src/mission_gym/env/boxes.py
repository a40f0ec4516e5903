"""Boxes as leaves: which are pictures, planes or grids of ids, which are plain numbers.

Convolutions read what has sides of 8 or more: bytes, zeros and ones, and real numbers with a few channels;
stacks of frames become channels. Grids of a few integers are ids: one-hot columns where a side is shorter,
one-hot planes else. Pictures over 128 pixels are stored smaller, by the mean of each square of pixels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array, LeafSpec

_MIN_SIDE = 8  # of what convolutions read
_MAX_SIDE = 128  # of a picture as it is stored
_MAX_CHANNELS = 16  # of real numbers: more are entries of something else than a picture
_MIN_GRID_SIDE, _MAX_GRID_SIDE = 3, 32
_ID_COUNTS = (4, 16, 32)  # ids of a channel are counted generously: few episodes do not show all
_MAX_ID_COLUMNS = 1 << 13  # of one-hot cells; beyond it they are numbers


class _Layout(NamedTuple):
    """Where the channels of an array are."""

    sides: tuple[int, int]
    num_channels: int  # of one frame
    channels_last: bool


def box_leaf(space: spaces.Box, name: str) -> LeafSpec:
    """The leaf of a Box, by its bounds alone."""
    dtype = str(space.dtype)
    plain = LeafSpec(name, space.shape, dtype, "binary" if space.dtype.kind == "b" else "vector")
    layout = _find_layout(space)
    if layout is None:
        return plain
    low, high = float(space.low.min()), float(space.high.max())
    if space.dtype.kind in "iu" and 1 < high - low < _ID_COUNTS[-1]:
        return _make_grid(plain, layout, (int(high - low) + 1,) * layout.num_channels, int(low)) or plain
    if min(layout.sides) < _MIN_SIDE:
        return plain
    image = replace(plain, kind="image", channels_last=layout.channels_last)
    if dtype == "uint8":
        return _shrink(image if high > 1 else with_bounds(image, space), layout)
    if len(space.shape) == 2:  # a table as likely as a picture
        return plain
    if space.dtype.kind == "f" and layout.num_channels <= _MAX_CHANNELS:
        return _shrink(with_bounds(image, space), layout)
    return image if space.dtype.kind == "b" else plain


def with_bounds(leaf: LeafSpec, space: spaces.Box) -> LeafSpec:
    """The leaf with the bounds that its numbers are scaled by; none where one is infinite, or as good as."""
    low, high = (np.asarray(bound, np.float64).ravel() for bound in (space.low, space.high))
    if not np.all((np.abs(low) < 1e6) & (np.abs(high) < 1e6) & (low < high)):
        return leaf
    if np.ptp(low) == np.ptp(high) == 0:
        low, high = low[:1], high[:1]
    return replace(leaf, low=tuple(low.tolist()), high=tuple(high.tolist()))


def may_hold_ids(leaf: LeafSpec) -> bool:
    """Whether the values must tell: a small picture and a grid of ids have the same space."""
    if leaf.dtype != "uint8" or leaf.kind not in ("vector", "image") or leaf.nvec or leaf.high:
        return False
    layout = _arrange(leaf.shape)
    return layout is not None and all(_MIN_GRID_SIDE <= side <= _MAX_GRID_SIDE for side in layout.sides)


def is_picture(highest: Array) -> bool:
    """Whether a value was seen that is too high for an id."""
    return bool(highest.max() >= _ID_COUNTS[-1])


def as_ids(leaf: LeafSpec, highest: Array) -> LeafSpec:
    """The leaf as ids, given the highest value of each cell that was seen; itself if they are not ids."""
    layout = _arrange(leaf.shape)
    if layout is None or is_picture(highest) or highest.max() < 2:  # a dark or black-and-white one, maybe
        return leaf
    by_channel = highest.reshape(-1, highest.shape[-1]).max(0) if layout.channels_last else [highest.max()]
    nvec = [min(count for count in _ID_COUNTS if count > top) for top in by_channel]
    nvec = nvec * (layout.num_channels // len(nvec))
    return _make_grid(leaf, layout, tuple(nvec), 0) or leaf


def with_frames(leaf: LeafSpec, num: int) -> LeafSpec:
    """The leaf of an observation that stacks so many frames along its first axis: where convolutions read
    them as channels, they are held once."""
    is_stack = leaf.kind == "image" and len(leaf.shape) > 2 + leaf.channels_last
    return replace(leaf, frames=num) if is_stack else leaf


def shrink_picture(leaf: LeafSpec, shape: tuple[int, ...], picture: Array) -> Array:
    """The mean of each square of `leaf.shrink` pixels; rows and columns that fill none are left out.

    shape: of the picture as the space declares it; ValueError for another.
    """
    if np.shape(picture) != shape:
        raise ValueError(f"a picture has shape {np.shape(picture)}, expected {shape}")
    by, first = leaf.shrink, _first_side(leaf)
    height, width = leaf.shape[first : first + 2]
    head = (slice(None),) * first
    total = np.zeros(leaf.shape, np.float32)
    for down in range(by):
        for right in range(by):
            rows, columns = (slice(at, at + by * size, by) for at, size in ((down, height), (right, width)))
            total += picture[*head, rows, columns]
    total /= by * by
    return (np.rint(total) if leaf.dtype == "uint8" else total).astype(leaf.dtype)


def _find_layout(space: spaces.Box) -> _Layout | None:
    layout = _arrange(space.shape)
    return layout if layout is not None and min(layout.sides) >= _MIN_GRID_SIDE else None


def _arrange(shape: tuple[int, ...]) -> _Layout | None:
    """Sides and channels of [H, W], [H, W, C], [C, H, W], [k, H, W, C] or [k, C, H, W]."""
    if len(shape) == 2:
        return _Layout((shape[0], shape[1]), 1, False)
    if len(shape) not in (3, 4):
        return None
    first, second, last = shape[-3:]
    if last <= first:
        return _Layout((first, second), last, True)
    return _Layout((second, last), first, False)


def _make_grid(leaf: LeafSpec, layout: _Layout, nvec: tuple[int, ...], start: int) -> LeafSpec | None:
    """Cells of ids, `nvec` for each channel of a frame; None if there are too many columns."""
    num_frames, leaf = leaf.shape[0] if len(leaf.shape) == 4 else 1, replace(leaf, open_ended=True)
    if min(layout.sides) >= _MIN_SIDE:
        nvec = nvec * num_frames
        starts = (start,) * len(nvec)
        return replace(leaf, kind="image", nvec=nvec, start=starts, channels_last=layout.channels_last)
    num_cells = layout.sides[0] * layout.sides[1]
    of_frame = nvec * num_cells if layout.channels_last else tuple(n for n in nvec for _ in range(num_cells))
    cells = of_frame * num_frames
    if sum(cells) > _MAX_ID_COLUMNS:
        return None
    return replace(leaf, kind="categories", nvec=cells, start=(start,) * len(cells), channels_last=False)


def _shrink(leaf: LeafSpec, layout: _Layout) -> LeafSpec:
    by = min(-(-max(layout.sides) // _MAX_SIDE), min(layout.sides) // _MIN_SIDE)  # a narrow one stays long
    if by == 1:
        return leaf
    first = _first_side(leaf)
    sides = tuple(side // by for side in leaf.shape[first : first + 2])
    return replace(leaf, shape=(*leaf.shape[:first], *sides, *leaf.shape[first + 2 :]), shrink=by)


def _first_side(leaf: LeafSpec) -> int:
    """The axis of a picture's height; that of its width follows."""
    return len(leaf.shape) - (3 if leaf.channels_last else 2)
