"""What comes before the hidden layers for each leaf that is not flat, in numbers: layers, widths, parameters.

Torch-free, so that a plan can count what `trunks` builds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mission_gym.data import LeafSpec

ELEMENT_WIDTH = 64  # of the layers that all elements of a sequence share


class Conv(NamedTuple):
    """One layer of convolutions, with square kernels."""

    width: int
    side: int
    stride: int


# Nature's three strided layers for large pictures; they do not fit small ones.
_LARGE, _SMALL = (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1)), (Conv(32, 3, 2), Conv(64, 3, 2))
# Planes, ids and small pictures of real numbers: a cell has a meaning of its own, and strides would skip it.
_CELLS, _MANY_CELLS = (Conv(16, 3, 1),), (Conv(16, 3, 1), Conv(32, 3, 2))
_MANY = 16  # cells of a side


def image_shape(leaf: LeafSpec) -> tuple[int, int, int]:
    """Planes, height and width of an image as convolutions read it."""
    shape = leaf.shape
    height, width = shape[-3:-1] if leaf.channels_last else shape[-2:]
    planes = sum(leaf.nvec) or int(np.prod(shape, dtype=np.int64)) // (height * width)
    return planes, height, width


def conv_layers(leaf: LeafSpec) -> tuple[Conv, ...]:
    """The convolutions of an image."""
    short = min(image_shape(leaf)[1:])
    if is_bytes(leaf) or short >= 36:
        return _LARGE if short >= 36 else _SMALL
    return _MANY_CELLS if short >= _MANY else _CELLS


def is_bytes(leaf: LeafSpec) -> bool:
    """Whether an image is of pixels from 0 to 255."""
    return leaf.dtype == "uint8" and not leaf.nvec and not leaf.high


def branch_width(leaf: LeafSpec) -> int:
    """Features that a leaf's own layers give."""
    if leaf.kind == "sequence":
        return 2 * ELEMENT_WIDTH + 1  # mean, maximum, how many there are
    return 128 if conv_layers(leaf) in (_CELLS, _MANY_CELLS) else 512


def count_work(leaf: LeafSpec) -> int:
    """Multiply-adds of a pass through a leaf's own layers, roughly."""
    if leaf.kind == "sequence":
        return leaf.max_elements * count_parameters(leaf)
    if is_bytes(leaf):  # about 200 a byte of the picture, and a layer of 512 follows
        return 200 * leaf.size_bytes + 300_000
    planes, height, width = image_shape(leaf)
    first, *_ = conv_layers(leaf)
    cells = height * width // first.stride**2
    return cells * first.width * planes * first.side**2 + cells * first.width * branch_width(leaf)


def count_parameters(leaf: LeafSpec) -> int:
    """Parameters of a leaf's own layers."""
    if leaf.kind == "sequence":
        return (leaf.num_element_features + 1) * ELEMENT_WIDTH + (ELEMENT_WIDTH + 1) * ELEMENT_WIDTH
    channels, *sides = image_shape(leaf)
    count = 0
    for width, side, stride in conv_layers(leaf):
        count += (channels * side * side + 1) * width
        channels, sides = width, [(length - side) // stride + 1 for length in sides]
    return count + (channels * sides[0] * sides[1] + 1) * branch_width(leaf)
