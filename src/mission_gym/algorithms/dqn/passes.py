"""Forward and hand-written backward of a network of action values, compiled.

Parameters and gradient are one flat vector each, in the order of `Net`: of every shared layer the weights
[in, out] and the biases, then for each stream the same of its hidden layer and of its head. `start` walks
through that vector, `place` through the hidden outputs.
"""

from __future__ import annotations

import numpy as np

from mission_gym.algorithms.dqn.network import Scratch, Shape
from mission_gym.compiled import matrix_kernel
from mission_gym.data import Array
from mission_gym.learner.products import (
    activate,
    backward_activation,
    matrix,
    multiply,
    multiply_by_transposed,
    multiply_transposed,
    stack,
)


@matrix_kernel
def _forward_layer(
    shape: Shape, flat: Array, start: int, below: Array, hidden: Array, place: int, num_out: int
) -> None:
    """h = f(h_below W + b) into `hidden`."""
    num_rows, num_in = below.shape
    multiply(below, matrix(flat, start, num_in, num_out), matrix(hidden, place, num_rows, num_out))
    bias = stack(flat, start + num_in * num_out, 1, 1, num_out)
    activate(shape.activation, stack(hidden, place, 1, num_rows, num_out), bias)


@matrix_kernel
def _forward_head(flat: Array, start: int, top: Array, out: Array) -> None:
    """y = h W + b."""
    num_rows, num_out = out.shape
    multiply(top, matrix(flat, start, top.shape[1], num_out), out)
    bias = start + top.shape[1] * num_out
    for i in range(num_rows):
        for j in range(num_out):
            out[i, j] += flat[bias + j]


@matrix_kernel
def forward(shape: Shape, flat: Array, x: Array, work: Scratch, q: Array) -> None:
    """Action values [R, A] of inputs [R, F]; hidden outputs stay in `work.hidden`."""
    num_rows, start, place = len(x), 0, 0
    below, hidden, width, num_actions = x, work.hidden, shape.width, shape.num_actions
    for layer in range(1, len(shape.body)):
        num_in, num_out = shape.body[layer - 1], shape.body[layer]
        _forward_layer(shape, flat, start, below, hidden, place, num_out)
        below = matrix(hidden, place, num_rows, num_out)
        start += (num_in + 1) * num_out
        place += num_rows * num_out
    for stream in range(shape.num_streams):
        _forward_layer(shape, flat, start, below, hidden, place, width)
        start += (below.shape[1] + 1) * width
        top = matrix(hidden, place, num_rows, width)
        _forward_head(flat, start, top, q if stream == 0 else work.state_value[:num_rows])
        start += (width + 1) * num_actions
        place += num_rows * width
    if shape.num_streams > 1:  # Q = V + A - mean(A)
        for i in range(num_rows):
            mean = q[i, 0]
            for j in range(1, num_actions):
                mean += q[i, j]
            shift = work.state_value[i, 0] - mean / np.float32(num_actions)
            for j in range(num_actions):
                q[i, j] += shift


@matrix_kernel
def _backward_head(flat: Array, grad: Array, start: int, top: Array, d_out: Array, d_top: Array) -> None:
    """y = h W + b, so dW = h^T dy, db = sum dy, dh = dy W^T."""
    num_rows, num_out = d_out.shape
    num_in = top.shape[1]
    multiply_transposed(top, d_out, matrix(grad, start, num_in, num_out))
    multiply_by_transposed(d_out, matrix(flat, start, num_in, num_out), d_top)
    bias = start + num_in * num_out
    grad[bias : bias + num_out] = 0.0
    for i in range(num_rows):
        for j in range(num_out):
            grad[bias + j] += d_out[i, j]


@matrix_kernel
def _backward_layer(
    shape: Shape, grad: Array, start: int, below: Array, hidden: Array, d_hidden: Array, num_out: int
) -> None:
    """dz = dh f'(z) in place, db = sum dz, dW = h_below^T dz; `hidden` and `d_hidden` begin at the layer."""
    num_rows, num_in = below.shape
    d = stack(d_hidden, 0, 1, num_rows, num_out)
    d_bias = stack(grad, start + num_in * num_out, 1, 1, num_out)
    backward_activation(shape.activation, d, stack(hidden, 0, 1, num_rows, num_out), d_bias)
    multiply_transposed(below, matrix(d_hidden, 0, num_rows, num_out), matrix(grad, start, num_in, num_out))


@matrix_kernel
def backward(shape: Shape, flat: Array, grad: Array, num_rows: int, num_passed: int, work: Scratch) -> None:
    """Write the gradient of every array for the first `num_rows` of the `num_passed` rows that were passed
    forward; it is the whole of it, so nothing is zeroed first."""
    num_layers, width, num_actions = len(shape.body) - 1, shape.width, shape.num_actions
    hidden, d_hidden, x = work.hidden, work.d_hidden, work.x[:num_rows]
    start = place = d_place = below_place = d_below_place = 0  # of the streams, from where it goes down
    for layer in range(1, num_layers + 1):
        start += (shape.body[layer - 1] + 1) * shape.body[layer]
        below_place, d_below_place = place, d_place
        place += num_passed * shape.body[layer]
        d_place += num_rows * shape.body[layer]
    num_in, first = shape.body[num_layers], start
    below = x if num_layers == 0 else matrix(hidden, below_place, num_rows, num_in)
    d_below = matrix(d_hidden, d_below_place, num_rows, num_in if num_layers else 0)
    for stream in range(shape.num_streams):
        head = start + (num_in + 1) * width
        top, d_top = matrix(hidden, place, num_rows, width), matrix(d_hidden, d_place, num_rows, width)
        _backward_head(flat, grad, head, top, work.d_q if stream == 0 else work.d_value, d_top)
        _backward_layer(shape, grad, start, below, hidden[place:], d_hidden[d_place:], width)
        if num_layers:
            weight = matrix(flat, start, num_in, width)
            if stream == 0:
                multiply_by_transposed(d_top, weight, d_below)
            else:
                added = matrix(work.d_below, 0, num_rows, num_in)
                multiply_by_transposed(d_top, weight, added)
                for i in range(num_rows):
                    for j in range(num_in):
                        d_below[i, j] += added[i, j]
        start = head + (width + 1) * num_actions
        place += num_passed * width
        d_place += num_rows * width
    start, place, d_place = first, below_place, d_below_place
    for layer in range(num_layers, 0, -1):
        num_in, num_out = shape.body[layer - 1], shape.body[layer]
        start -= (num_in + 1) * num_out
        lower, d_lower = place - num_passed * num_in, d_place - num_rows * num_in
        source = x if layer == 1 else matrix(hidden, lower, num_rows, num_in)
        _backward_layer(shape, grad, start, source, hidden[place:], d_hidden[d_place:], num_out)
        if layer > 1:
            d = matrix(d_hidden, d_place, num_rows, num_out)
            out = matrix(d_hidden, d_lower, num_rows, num_in)
            multiply_by_transposed(d, matrix(flat, start, num_in, num_out), out)
        place, d_place = lower, d_lower
