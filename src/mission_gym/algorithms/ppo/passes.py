"""Forward and hand-written backward of actor and critic, compiled.

Both networks run as one stack [2, B, H], the actor first. Parameters and gradient are one flat vector each,
in the order of `Net`: of every hidden layer the weights of both [in, out], then their biases [2, 1, out];
then the actor's head and the critic's. The critic's first layer may have more inputs. `start` walks through
that vector, `place` through the hidden outputs.
"""

from __future__ import annotations

import numpy as np

from mission_gym.algorithms.ppo.network import Scratch, Shape
from mission_gym.compiled import matrix_kernel
from mission_gym.data import Array
from mission_gym.learner.products import (
    activate,
    backward_activation,
    matrix,
    multiply,
    multiply_by_transposed,
    multiply_transposed,
)


@matrix_kernel
def _stack(flat: Array, start: int, num_rows: int, num_columns: int) -> Array:
    return flat[start : start + 2 * num_rows * num_columns].reshape((2, num_rows, num_columns))


@matrix_kernel
def _source(seen: Array, x: Array, hidden: Array, below: int, s: int, width: int) -> Array:
    """What a layer of network s reads: its inputs where `below` is negative, else the outputs there."""
    if below < 0:
        return seen if s == 0 else x
    return matrix(hidden, below + s * len(x) * width, len(x), width)


@matrix_kernel
def forward(
    shape: Shape, flat: Array, seen: Array, x: Array, hidden: Array, params: Array, values: Array
) -> None:
    """Actor outputs [B, P] for inputs `seen` [B, A] and values [B] for inputs x [B, F]; hidden outputs stay
    in `hidden`."""
    num_rows, start, place, below = len(x), 0, 0, -1
    # h = f(h_below W + b) for both networks.
    for layer in range(len(shape.sizes) - 1):
        num_out = shape.sizes[layer + 1]
        for s in range(2):
            source = _source(seen, x, hidden, below, s, shape.sizes[layer])
            weight = matrix(flat, start, source.shape[1], num_out)
            multiply(source, weight, matrix(hidden, place + s * num_rows * num_out, num_rows, num_out))
            start += weight.size
        activate(shape.activation, _stack(hidden, place, num_rows, num_out), _stack(flat, start, 1, num_out))
        start += 2 * num_out
        below = place
        place += 2 * num_rows * num_out
    width, num_params = shape.sizes[-1], shape.num_params
    multiply(matrix(hidden, below, num_rows, width), matrix(flat, start, width, num_params), params)
    start += width * num_params
    for i in range(num_rows):
        for j in range(num_params):
            params[i, j] += flat[start + j]
    start += num_params
    critic = matrix(hidden, below + num_rows * width, num_rows, width)
    np.dot(critic, flat[start : start + width], values)
    values += flat[start + width]


@matrix_kernel
def backward(shape: Shape, flat: Array, grad: Array, seen: Array, x: Array, work: Scratch) -> None:
    """Write the gradient of every array; it is the whole of it, so nothing is zeroed first."""
    num_rows, num_layers = len(x), len(shape.sizes) - 1
    width, num_params = shape.sizes[-1], shape.num_params
    hidden, d_hidden, d_params, d_values = work.hidden, work.d_hidden, work.d_params, work.d_values
    start, place = (shape.num_seen - shape.sizes[0]) * shape.sizes[1], 0  # of the top layer, to go down from
    for layer in range(num_layers):
        start += 2 * (shape.sizes[layer] + 1) * shape.sizes[layer + 1]
        place += 2 * num_rows * shape.sizes[layer + 1]
    # Heads: y = h W + b, so dW = h^T dy, db = sum dy, dh = dy W^T.
    head = start
    place -= 2 * num_rows * width
    actor = matrix(hidden, place, num_rows, width)
    multiply_transposed(actor, d_params, matrix(grad, head, width, num_params))
    multiply_by_transposed(
        d_params, matrix(flat, head, width, num_params), matrix(d_hidden, place, num_rows, width)
    )
    head += width * num_params
    grad[head : head + num_params] = 0.0
    for i in range(num_rows):
        for j in range(num_params):
            grad[head + j] += d_params[i, j]
    head += num_params
    critic = matrix(hidden, place + num_rows * width, num_rows, width)
    np.dot(critic.T, d_values, grad[head : head + width])
    d_critic = matrix(d_hidden, place + num_rows * width, num_rows, width)
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
        backward_activation(
            shape.activation,
            _stack(d_hidden, place, num_rows, num_out),
            _stack(hidden, place, num_rows, num_out),
            _stack(grad, start, 1, num_out),
        )
        below = place - 2 * num_rows * num_in if layer > 0 else -1
        for s in range(1, -1, -1):
            d = matrix(d_hidden, place + s * num_rows * num_out, num_rows, num_out)
            source = _source(seen, x, hidden, below, s, num_in)
            start -= source.shape[1] * num_out
            multiply_transposed(source, d, matrix(grad, start, source.shape[1], num_out))
            if layer > 0:
                out = matrix(d_hidden, below + s * num_rows * num_in, num_rows, num_in)
                multiply_by_transposed(d, matrix(flat, start, num_in, num_out), out)
        place = below
