"""Forward and hand-written backward of actor and critic, compiled as one pass without the GIL.

Both networks run as one stack [2, B, H]. Parameters, gradient and moments are one flat vector each, in the
order of `Net`. Threads ("ranks") learn from fixed parts of every minibatch: gradients are added in the order
of the ranks, each for its part of the vector, and they meet at a counter instead of in the interpreter.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  what numba multiplies with; loaded before threads are capped

from mission_gym.compiled import atomic_add, atomic_read, kernel, matrix_entry, matrix_kernel, yield_core
from mission_gym.data import Array
from mission_gym.learner.heads import (
    BINARY,
    CATEGORIES,
    backward_binary,
    backward_box,
    backward_categories,
    forward_binary,
    forward_box,
    forward_categories,
)
from mission_gym.learner.kernel import ADAM_EPSILON, ADVANTAGE_FLOOR
from mission_gym.learner.loops import (
    RELU,
    TANH,
    activate_elu,
    activate_relu,
    activate_tanh,
    backward_elu,
    backward_relu,
    backward_tanh,
    clipped_losses,
    step_adam,
)
from mission_gym.learner.network import Batch, Numbers, Room, Shape

NUM_STATS = 7  # the columns of `kernel.mean_stats`


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
def _multiply_first_turned(a: Array, b: Array, out: Array) -> None:
    """out = a^T b."""
    np.dot(a.T, b, out)


@matrix_kernel
def _multiply_second_turned(a: Array, b: Array, out: Array) -> None:
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
def backward(shape: Shape, flat: Array, grad: Array, x: Array, room: Room) -> None:
    """Write the gradient of every array; it is the whole of it, so nothing is zeroed first."""
    num_rows, num_layers = len(x), len(shape.sizes) - 1
    width, num_params = shape.sizes[-1], shape.num_params
    hidden, d_hidden, d_params, d_values = room.hidden, room.d_hidden, room.d_params, room.d_values
    start = place = 0  # of the top layer, from where it goes down
    for layer in range(num_layers):
        start += 2 * (shape.sizes[layer] + 1) * shape.sizes[layer + 1]
        place += 2 * num_rows * shape.sizes[layer + 1]
    head = start
    place -= 2 * num_rows * width
    actor = _matrix(hidden, place, num_rows, width)
    _multiply_first_turned(actor, d_params, _matrix(grad, head, width, num_params))
    _multiply_second_turned(
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
            _multiply_first_turned(source, d, _matrix(grad, at, num_in, num_out))
            if layer > 0:
                out = _matrix(d_hidden, below + s * num_rows * num_in, num_rows, num_in)
                _multiply_second_turned(d, _matrix(flat, at, num_in, num_out), out)
        place = below


@matrix_kernel
def _judge(shape: Shape, log_std: Array, action: Array, mask: Array, room: Room) -> None:
    """The log-probabilities of actions, from the actor's outputs."""
    if shape.kind == CATEGORIES:
        forward_categories(room.params, mask, shape.edges, action, room.p, room.log_p, room.log_prob)
    elif shape.kind == BINARY:
        forward_binary(room.params, action, room.p, room.log_p, room.log_prob)
    else:
        forward_box(room.params, log_std, action, room.p, room.log_prob)


@matrix_kernel
def _learn(shape: Shape, flat: Array, grad: Array, room: Room, numbers: Numbers, stats: Array) -> None:
    """The gradient of the rows in the room; policy loss, value loss, entropy, KL and clip fraction as sums
    with the rows' weights, and the largest |ratio - 1|, into `stats`."""
    batch, num_stored = room.batch, room.batch.action.shape[1]
    forward(shape, flat, batch.flat, room.hidden, room.params, room.values)
    log_std = flat[len(flat) - num_stored :]  # of a box alone
    _judge(shape, log_std, batch.action, batch.mask, room)
    loss, kl, clipped, worst = clipped_losses(
        room.log_prob, batch.log_prob, batch.advantage, batch.weight, numbers.clip_range, room.slope
    )
    for i in range(len(room.bonus)):
        room.bonus[i] = batch.weight[i] * numbers.ent_coef
    if shape.kind == CATEGORIES:
        backward_categories(
            room.p, room.log_p, shape.edges, batch.action, room.slope, room.bonus, room.d_params, room.entropy
        )
    elif shape.kind == BINARY:
        backward_binary(
            room.params, room.p, room.log_p, batch.action, room.slope, room.bonus, room.d_params, room.entropy
        )
    else:
        d_log_std = grad[len(grad) - num_stored :]
        backward_box(room.p, log_std, room.slope, room.bonus, room.d_params, d_log_std, room.entropy)
    value_loss = entropy = 0.0
    for i in range(len(room.values)):
        miss = room.values[i] - batch.returns[i]
        value_loss += batch.weight[i] * miss * miss
        entropy += batch.weight[i] * room.entropy[i]
        room.d_values[i] = np.float32(2.0 * numbers.vf_coef) * batch.weight[i] * miss
    backward(shape, flat, grad, batch.flat, room)
    stats[0], stats[1], stats[2], stats[3], stats[4], stats[5] = loss, value_loss, entropy, kl, clipped, worst


@kernel
def _gather(
    samples: Batch, importance: Array, ids: Array, first: int, room: Room, normalize_advantage: bool
) -> None:
    """The rank's rows of a minibatch, from `first` on; advantages are normalised over the whole of it."""
    rows = room.batch
    total = mean = square = 0.0
    for i in ids:
        total += samples.weight[i]
        mean += samples.weight[i] * samples.advantage[i]
    total = max(total, 1.0)
    mean = mean / total if normalize_advantage else 0.0
    for i in ids:
        centered = samples.advantage[i] - mean
        square += samples.weight[i] * centered * centered
    scale = 1.0 / max(math.sqrt(square / total), ADVANTAGE_FLOOR) if normalize_advantage else 1.0
    for row in range(len(rows.weight)):
        i = ids[first + row]
        for j in range(rows.flat.shape[1]):
            rows.flat[row, j] = samples.flat[i, j]
        for j in range(rows.action.shape[1]):
            rows.action[row, j] = samples.action[i, j]
        for j in range(rows.mask.shape[1]):
            rows.mask[row, j] = samples.mask[i, j]
        rows.weight[row] = samples.weight[i] / total
        rows.log_prob[row] = samples.log_prob[i]
        rows.returns[row] = samples.returns[i]
        rows.advantage[row] = (samples.advantage[i] - mean) * scale
        if importance.size:
            rows.advantage[row] *= importance[i]


@kernel
def _meet(counter: Array, arrivals: int) -> None:
    """Wait until so many ranks have come here since the start."""
    atomic_add(counter, 0, 1)
    looks = 0
    while atomic_read(counter, 0) < arrivals:
        looks += 1
        if looks % 1024 == 0:
            yield_core()


@kernel
def _sum_up(partial: Array, sums: Array) -> None:
    """The statistics of all ranks: sums, and of the last column but one the largest."""
    for column in range(6):
        sums[column] = partial[0, column]
        for other in range(1, len(partial)):
            value = partial[other, column]
            if column < 5:
                sums[column] += value
            elif not value <= sums[column]:  # true for NaN, too
                sums[column] = value


@matrix_entry
def learn(
    shape: Shape,
    vectors: tuple[Array, Array, Array],
    grads: Array,
    samples: Batch,
    importance: Array,
    order: Array,
    numbers: Numbers,
    num_steps: int,
    room: Room,
    rank: int,
    counter: Array,
    partial: Array,
    table: Array,
) -> int:
    """One gradient step for each minibatch, a row of `order`; returns the steps of Adam made so far.

    vectors: parameters and both moments; grads [R, P], one for each rank; counter: 0; partial [R, NUM_STATS]
    and table [num minibatches, NUM_STATS]: statistics.
    """
    flat, first, second = vectors
    num_ranks, size = grads.shape
    low, high = size * rank // num_ranks, size * (rank + 1) // num_ranks
    arrivals = 0
    for k in range(len(order)):
        place = order.shape[1] * rank // num_ranks
        _gather(samples, importance, order[k], place, room, numbers.normalize_advantage)
        _learn(shape, flat, grads[rank], room, numbers, partial[rank])
        if num_ranks > 1:
            arrivals += num_ranks
            _meet(counter, arrivals)
            for other in range(1, num_ranks):
                for i in range(low, high):
                    grads[0, i] += grads[other, i]
        mine = grads[0, low:high]
        partial[rank, 6] = np.dot(mine, mine)
        if num_ranks > 1:
            arrivals += num_ranks
            _meet(counter, arrivals)
        square = 0.0
        for other in range(num_ranks):
            square += partial[other, 6]
        norm = math.sqrt(square)
        if math.isfinite(norm):
            num_steps += 1
            step_adam(
                flat[low:high], mine, first[low:high], second[low:high], num_steps, numbers.learning_rate,
                min(numbers.max_grad_norm / (norm + 1e-6), 1.0), ADAM_EPSILON,
            )  # fmt: skip
        if rank == 0:
            _sum_up(partial, table[k])
            table[k, 6] = norm
        if num_ranks > 1:
            arrivals += num_ranks
            _meet(counter, arrivals)
    return num_steps


@matrix_entry
def evaluate(
    shape: Shape,
    flat: Array,
    x: Array,
    action: Array,
    mask: Array,
    room: Room,
    log_prob: Array,
    values: Array,
) -> None:
    """Log-probabilities of the first len(action) rows of x, and values of all."""
    forward(shape, flat, x, room.hidden, room.params, values)
    log_std = flat[len(flat) - action.shape[1] :]
    _judge(shape, log_std, action, mask, room)
    for i in range(len(action)):
        log_prob[i] = room.log_prob[i]
