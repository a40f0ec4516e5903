"""Compiled loops that kernels share: activations, their derivatives and Adam's step, one pass each.

`tanh` is a ratio of two polynomials with a relative error of at most 2e-8, correct within four units in the
last place of float32; NumPy's takes four times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mission_gym.compiled import entry, kernel, sum_kernel
from mission_gym.data import Array
from mission_gym.learner import ADAM_BETAS

Real = np.float32 | float

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_BETA1, _BETA2 = ADAM_BETAS
_NORM_EPSILON = np.float32(1e-5)  # torch's, of layer normalization
_LIMIT = np.float32(9.0)  # beyond it tanh is 1 in float32
_P0, _P1, _P2, _P3, _P4 = (
    np.float32(c) for c in (0.99999998, 0.13381052, 3.49561848e-3, 2.06095436e-5, 1.33552314e-8)
)
_Q1, _Q2, _Q3, _Q4 = (np.float32(c) for c in (0.46714368, 2.58771002e-2, 3.28568279e-4, 7.77680608e-7))


@kernel
def _clamp(x: Real, limit: Real) -> Real:
    return min(max(x, -limit), limit)


@entry
def activate_tanh(x: Array, bias: Array) -> None:
    """x = tanh(x + bias), in place; x [R, H], bias [H]."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            v = _clamp(x[i, j] + bias[j], _LIMIT)
            w = v * v
            p = (((_P4 * w + _P3) * w + _P2) * w + _P1) * w + _P0
            q = (((_Q4 * w + _Q3) * w + _Q2) * w + _Q1) * w + _ONE
            x[i, j] = _clamp(v * p / q, _ONE)


@entry
def backward_tanh(d: Array, h: Array, d_bias: Array) -> None:
    """d *= 1 - h^2, in place, and d_bias = its sums over rows; d and h [R, H]."""
    d_bias[:] = 0.0
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            v = d[i, j] * (_ONE - h[i, j] * h[i, j])
            d[i, j] = v
            d_bias[j] += v


@entry
def activate_relu(x: Array, bias: Array) -> None:
    """x = max(x + bias, 0), in place."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            v = x[i, j] + bias[j]
            x[i, j] = v if not v < _ZERO else _ZERO  # NaN stays NaN


@entry
def backward_relu(d: Array, h: Array, d_bias: Array) -> None:
    """d = 0 where h = 0, in place, and d_bias = its sums over rows."""
    d_bias[:] = 0.0
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            v = d[i, j] if h[i, j] > _ZERO else _ZERO
            d[i, j] = v
            d_bias[j] += v


@entry
def activate_elu(x: Array, bias: Array) -> None:
    """x = z if z > 0 else exp(z) - 1, with z = x + bias, in place."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            v = x[i, j] + bias[j]
            x[i, j] = np.float32(math.expm1(v)) if v < _ZERO else v


@entry
def backward_elu(d: Array, h: Array, d_bias: Array) -> None:
    """d *= h + 1 where h < 0, in place, and d_bias = its sums over rows."""
    d_bias[:] = 0.0
    for i in range(d.shape[0]):
        for j in range(d.shape[1]):
            v = d[i, j] * (_ONE if h[i, j] > _ZERO else h[i, j] + _ONE)
            d[i, j] = v
            d_bias[j] += v


@kernel
def copy_rows(source: Array, first: int, out: Array, start: int, num: int) -> None:
    """Copy `num` rows from `first` on to those from `start` on, as many of their numbers as both have."""
    width = min(source.shape[1], out.shape[1])
    for i in range(num):
        for j in range(width):
            out[start + i, j] = source[first + i, j]


@sum_kernel
def normalize_rows(x: Array, bias: Array, unit: Array, scale: Array) -> None:
    """Layer normalization: x = unit = (z - mean z) scale with z = x + bias and scale = 1 / std z, by row.

    x and unit [R, H], bias [H], scale [R]. As torch's, without weights.
    """
    share = _ONE / np.float32(x.shape[1])
    for i in range(x.shape[0]):
        total = square = _ZERO
        for j in range(x.shape[1]):
            x[i, j] += bias[j]
            total += x[i, j]
        mean = total * share
        for j in range(x.shape[1]):
            off = x[i, j] - mean
            square += off * off
        scale[i] = _ONE / np.float32(math.sqrt(square * share + _NORM_EPSILON))
        for j in range(x.shape[1]):
            x[i, j] = (x[i, j] - mean) * scale[i]
            unit[i, j] = x[i, j]


@sum_kernel
def backward_normalize(d: Array, unit: Array, scale: Array, d_bias: Array) -> None:
    """d = scale (d - mean d - unit mean(d unit)), by row in place, and d_bias = its sums over rows."""
    d_bias[:] = _ZERO
    share = _ONE / np.float32(d.shape[1])
    for i in range(d.shape[0]):
        total = along = _ZERO
        for j in range(d.shape[1]):
            total += d[i, j]
            along += d[i, j] * unit[i, j]
        mean, slope = total * share, along * share
        for j in range(d.shape[1]):
            v = scale[i] * (d[i, j] - mean - unit[i, j] * slope)
            d[i, j] = v
            d_bias[j] += v


# In each pair: x = f(x + bias) in place; d *= f' from the output h. Compiled code numbers them in this order.
TANH, RELU, ELU = range(3)
ACTIVATIONS: dict[str, tuple[Callable[[Array, Array], None], Callable[[Array, Array, Array], None]]] = {
    "tanh": (activate_tanh, backward_tanh),
    "relu": (activate_relu, backward_relu),
    "elu": (activate_elu, backward_elu),
}


@entry
def step_adam(
    flat: Array,
    grad: Array,
    first: Array,
    second: Array,
    step: int,
    learning_rate: float,
    clip: float,
    epsilon: float,
) -> None:
    """Adam's step number `step` with bias correction, in place, on the gradient times `clip`."""
    beta1, beta2 = np.float32(_BETA1), np.float32(_BETA2)
    scale, floor = np.float32(clip), np.float32(epsilon)
    step_size = np.float32(learning_rate / (1.0 - _BETA1**step))
    correction = np.float32(1.0 / math.sqrt(1.0 - _BETA2**step))
    for i in range(len(flat)):
        g = grad[i] * scale
        m = first[i] * beta1 + g * (_ONE - beta1)
        v = second[i] * beta2 + g * g * (_ONE - beta2)
        first[i] = m
        second[i] = v
        flat[i] -= step_size * m / (math.sqrt(v) * correction + floor)
