"""The layers that read one image or sequence, in numbers: convolutions, widths, parameters.

Without torch, so that a plan can count the layers that `trunks` builds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mission_gym.data import LeafSpec

ELEMENT_WIDTH = 64  # of the layers shared by all elements of a sequence


class Conv(NamedTuple):
    """One convolution with square kernels."""

    width: int
    side: int
    stride: int


# The three strided layers of the Nature DQN for large images; small images need smaller kernels.
_LARGE, _SMALL = (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1)), (Conv(32, 3, 2), Conv(64, 3, 2))
# Planes, ids and small images of real numbers: each cell has a meaning, and strides would skip cells.
_CELLS, _MANY_CELLS = (Conv(16, 3, 1),), (Conv(16, 3, 1), Conv(32, 3, 2))
_MANY = 16  # cells per side


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
    """Whether an image has pixels from 0 to 255."""
    return leaf.dtype == "uint8" and not leaf.nvec and not leaf.high


def feature_width(leaf: LeafSpec) -> int:
    """Features that the layers of a leaf compute."""
    if leaf.kind == "sequence":
        return 2 * ELEMENT_WIDTH + 1  # mean, maximum, fill ratio
    return 128 if conv_layers(leaf) in (_CELLS, _MANY_CELLS) else 512


def count_work(leaf: LeafSpec) -> int:
    """Multiply-adds of a forward pass through the layers of a leaf, roughly."""
    if leaf.kind == "sequence":
        return leaf.max_elements * count_parameters(leaf)
    if is_bytes(leaf):  # about 200 per byte of the image, and a layer of 512 units
        return 200 * leaf.size_bytes + 300_000
    planes, height, width = image_shape(leaf)
    first, *_ = conv_layers(leaf)
    cells = height * width // first.stride**2
    return cells * first.width * planes * first.side**2 + cells * first.width * feature_width(leaf)


def count_parameters(leaf: LeafSpec) -> int:
    """Parameters of the layers of a leaf."""
    if leaf.kind == "sequence":
        return (leaf.num_element_features + 1) * ELEMENT_WIDTH + (ELEMENT_WIDTH + 1) * ELEMENT_WIDTH
    channels, *sides = image_shape(leaf)
    count = 0
    for width, side, stride in conv_layers(leaf):
        count += (channels * side * side + 1) * width
        channels, sides = width, [(length - side) // stride + 1 for length in sides]
    return count + (channels * sides[0] * sides[1] + 1) * feature_width(leaf)
