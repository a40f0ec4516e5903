"""Products of matrices and activations by number, for compiled passes over MLPs; by BLAS, on views of flat
vectors."""

from __future__ import annotations

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  what numba multiplies with; loaded before threads are capped

from mission_gym.compiled import matrix_kernel
from mission_gym.data import Array
from mission_gym.learner.loops import (
    RELU,
    TANH,
    activate_elu,
    activate_relu,
    activate_tanh,
    backward_elu,
    backward_relu,
    backward_tanh,
)


@matrix_kernel
def activate(activation: int, x: Array, bias: Array) -> None:
    """x = f(x + bias), in place; x [S, B, H], bias [S, 1, H]."""
    if activation == TANH:
        activate_tanh(x, bias)
    elif activation == RELU:
        activate_relu(x, bias)
    else:
        activate_elu(x, bias)


@matrix_kernel
def backward_activation(activation: int, d: Array, h: Array, d_bias: Array) -> None:
    """d *= f', from the output h, and its sums over rows; d and h [S, B, H], d_bias [S, 1, H]."""
    if activation == TANH:
        backward_tanh(d, h, d_bias)
    elif activation == RELU:
        backward_relu(d, h, d_bias)
    else:
        backward_elu(d, h, d_bias)


@matrix_kernel
def multiply(a: Array, b: Array, out: Array) -> None:
    """out = a b."""
    np.dot(a, b, out)


@matrix_kernel
def multiply_transposed(a: Array, b: Array, out: Array) -> None:
    """out = a^T b."""
    np.dot(a.T, b, out)


@matrix_kernel
def multiply_by_transposed(a: Array, b: Array, out: Array) -> None:
    """out = a b^T."""
    np.dot(a, b.T, out)


@matrix_kernel
def matrix(flat: Array, start: int, num_rows: int, num_columns: int) -> Array:
    """A view of a flat vector, from `start` on."""
    return flat[start : start + num_rows * num_columns].reshape((num_rows, num_columns))


@matrix_kernel
def stack(flat: Array, start: int, depth: int, num_rows: int, num_columns: int) -> Array:
    """As `matrix`, of several matrices that follow one another."""
    return flat[start : start + depth * num_rows * num_columns].reshape((depth, num_rows, num_columns))
