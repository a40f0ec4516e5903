"""Forward and hand-written backward of actor and critic, compiled.

Both networks run as one stack [2, B, H], the actor first. Parameters and gradient are one flat vector each,
in the order of `Net`: of every hidden layer the weights of both [2, in, out], then their biases [2, 1, out];
then the actor's head and the critic's. `start` walks through that vector, `place` through the hidden outputs.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  what numba multiplies with; loaded before threads are capped

from mission_gym.algorithms.ppo.network import Scratch, Shape
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
def _activate(activation: int, x: Array, bias: Array) -> None:
    if activation == TANH:
        activate_tanh(x, bias)
    elif activation == RELU:
        activate_relu(x, bias)
    else:
        activate_elu(x, bias)


@matrix_kernel
def _backward_activation(activation: int, d: Array, h: Array, d_bias: Array) -> None:
    if activation == TANH:
        backward_tanh(d, h, d_bias)
    elif activation == RELU:
        backward_relu(d, h, d_bias)
    else:
        backward_elu(d, h, d_bias)


@matrix_kernel
def _multiply(a: Array, b: Array, out: Array) -> None:
    """out = a b; by BLAS, as everywhere here."""
    np.dot(a, b, out)


@matrix_kernel
def _multiply_transposed(a: Array, b: Array, out: Array) -> None:
    """out = a^T b."""
    np.dot(a.T, b, out)


@matrix_kernel
def _multiply_by_transposed(a: Array, b: Array, out: Array) -> None:
    """out = a b^T."""
    np.dot(a, b.T, out)


@matrix_kernel
def _matrix(flat: Array, start: int, num_rows: int, num_columns: int) -> Array:
    return flat[start : start + num_rows * num_columns].reshape((num_rows, num_columns))


@matrix_kernel
def _stack(flat: Array, start: int, num_rows: int, num_columns: int) -> Array:
    return flat[start : start + 2 * num_rows * num_columns].reshape((2, num_rows, num_columns))


@matrix_kernel
def forward(shape: Shape, flat: Array, x: Array, hidden: Array, params: Array, values: Array) -> None:
    """Actor outputs [B, P] and values [B] for inputs [B, F]; hidden outputs stay in `hidden`."""
    num_rows, start, place, below = len(x), 0, 0, 0
    # h = f(h_below W + b) for both networks; the first layer of both reads x.
    for layer in range(len(shape.sizes) - 1):
        num_in, num_out = shape.sizes[layer], shape.sizes[layer + 1]
        for s in range(2):
            source = x if layer == 0 else _matrix(hidden, below + s * num_rows * num_in, num_rows, num_in)
            weight = _matrix(flat, start + s * num_in * num_out, num_in, num_out)
            _multiply(source, weight, _matrix(hidden, place + s * num_rows * num_out, num_rows, num_out))
        start += 2 * num_in * num_out
        _activate(shape.activation, _stack(hidden, place, num_rows, num_out), _stack(flat, start, 1, num_out))
        start += 2 * num_out
        below = place
        place += 2 * num_rows * num_out
    width, num_params = shape.sizes[-1], shape.num_params
    _multiply(_matrix(hidden, below, num_rows, width), _matrix(flat, start, width, num_params), params)
    start += width * num_params
    for i in range(num_rows):
        for j in range(num_params):
            params[i, j] += flat[start + j]
    start += num_params
    critic = _matrix(hidden, below + num_rows * width, num_rows, width)
    np.dot(critic, flat[start : start + width], values)
    values += flat[start + width]


@matrix_kernel
def backward(shape: Shape, flat: Array, grad: Array, x: Array, work: Scratch) -> None:
    """Write the gradient of every array; it is the whole of it, so nothing is zeroed first."""
    num_rows, num_layers = len(x), len(shape.sizes) - 1
    width, num_params = shape.sizes[-1], shape.num_params
    hidden, d_hidden, d_params, d_values = work.hidden, work.d_hidden, work.d_params, work.d_values
    start = place = 0  # of the top layer, from where it goes down
    for layer in range(num_layers):
        start += 2 * (shape.sizes[layer] + 1) * shape.sizes[layer + 1]
        place += 2 * num_rows * shape.sizes[layer + 1]
    # Heads: y = h W + b, so dW = h^T dy, db = sum dy, dh = dy W^T.
    head = start
    place -= 2 * num_rows * width
    actor = _matrix(hidden, place, num_rows, width)
    _multiply_transposed(actor, d_params, _matrix(grad, head, width, num_params))
    _multiply_by_transposed(
        d_params, _matrix(flat, head, width, num_params), _matrix(d_hidden, place, num_rows, width)
    )
    head += width * num_params
    grad[head : head + num_params] = 0.0
    for i in range(num_rows):
        for j in range(num_params):
            grad[head + j] += d_params[i, j]
    head += num_params
    critic = _matrix(hidden, place + num_rows * width, num_rows, width)
    np.dot(critic.T, d_values, grad[head : head + width])
    d_critic = _matrix(d_hidden, place + num_rows * width, num_rows, width)
    total = 0.0
    for i in range(num_rows):
        total += d_values[i]
        for j in range(width):
            d_critic[i, j] = d_values[i] * flat[head + j]
    grad[head + width] = total
    # Hidden layers, from the top: dz = dh f'(z), db = sum dz, dW = h_below^T dz, dh_below = dz W^T.
    for layer in range(num_layers - 1, -1, -1):
        num_in, num_out = shape.sizes[layer], shape.sizes[layer + 1]
        start -= 2 * num_out
        _backward_activation(
            shape.activation,
            _stack(d_hidden, place, num_rows, num_out),
            _stack(hidden, place, num_rows, num_out),
            _stack(grad, start, 1, num_out),
        )
        start -= 2 * num_in * num_out
        below = place - 2 * num_rows * num_in
        for s in range(2):
            d = _matrix(d_hidden, place + s * num_rows * num_out, num_rows, num_out)
            source = x if layer == 0 else _matrix(hidden, below + s * num_rows * num_in, num_rows, num_in)
            at = start + s * num_in * num_out
            _multiply_transposed(source, d, _matrix(grad, at, num_in, num_out))
            if layer > 0:
                out = _matrix(d_hidden, below + s * num_rows * num_in, num_rows, num_in)
                _multiply_by_transposed(d, _matrix(flat, at, num_in, num_out), out)
        place = below
