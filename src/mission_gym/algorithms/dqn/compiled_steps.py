"""Gradient steps of DQN, several in one compiled call without the GIL: the compiled form of the torch
kernel's.

Edit `loss` first. If `_td_errors` computes something else, the compiled kernel fails its verification and
torch trains.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mission_gym.algorithms.dqn.kernel import ADAM_EPSILON, ERROR, GRAD_NORM, LOSS, VALUE, QSettings
from mission_gym.compiled import matrix_entry, matrix_kernel
from mission_gym.data import Array
from mission_gym.learner.loops import copy_rows, step_adam
from mission_gym.learner.mlp import Mlp, backward, forward, output
from mission_gym.policy.sampling import FILLER

_FILLER = np.float32(FILLER)
_ZERO, _HALF, _ONE, _TWO = (np.float32(number) for number in (0.0, 0.5, 1.0, 2.0))


class QShape(NamedTuple):
    """The network, and the layers that its outputs come from."""

    mlp: Mlp
    q_layer: int  # action values, or the advantages of a dueling network
    value_layer: int  # the state's value of a dueling network, -1 for none


class QVectors(NamedTuple):
    """Flat vectors: parameters, target network, gradient, Adam's moments."""

    flat: Array
    target: Array
    grad: Array
    first: Array
    second: Array


class QRows(NamedTuple):
    """The transitions of some gradient steps, [N, ...]."""

    flat: Array  # float32 [N, F]
    next_flat: Array
    action: Array  # int64 [N, 1]
    reward: Array  # float32 [N]
    discount: Array
    next_mask: Array  # bool [N, A], or empty
    weight: Array  # float32 [N], or empty


class QScratch(NamedTuple):
    """The arrays of a gradient step, kept between steps: allocating them again would take as long as the
    products.

    B is the batch, R the rows of a forward pass of the online network: 2 B if it also reads the next
    observations. The target network passes M rows, those of several steps.
    """

    x: Array  # float32 [R, F]
    outputs: Array  # float32, flat: those of every layer for R or M rows
    d_outputs: Array  # the same for B rows
    spare: Array  # see `mlp.backward`
    q: Array  # float32 [R, A]
    next_values: Array  # float32 [M, A], of the target network


@matrix_kernel
def _compute_values(shape: QShape, flat: Array, x: Array, outputs: Array, q: Array) -> None:
    """Action values [R, A] of inputs [R, F]: Q = V + A - mean(A) if dueling. Outputs of layers stay in
    `outputs`."""
    num_rows = len(x)
    forward(shape.mlp, flat, x, x, outputs)
    advantage = output(shape.mlp, shape.q_layer, num_rows, num_rows, outputs)
    num_actions = advantage.shape[1]
    if shape.value_layer < 0:
        for i in range(num_rows):
            for j in range(num_actions):
                q[i, j] = advantage[i, j]
        return
    value = output(shape.mlp, shape.value_layer, num_rows, num_rows, outputs)
    for i in range(num_rows):
        mean = advantage[i, 0]
        for j in range(1, num_actions):
            mean += advantage[i, j]
        shift = value[i, 0] - mean / np.float32(num_actions)
        for j in range(num_actions):
            q[i, j] = advantage[i, j] + shift


@matrix_kernel
def _td_errors(
    shape: QShape,
    batch: QRows,
    first: int,
    settings: QSettings,
    work: QScratch,
    next_values: Array,
    errors: Array,
    stats: Array,
) -> None:
    """Targets, errors and the gradient of the loss by the network's outputs, row by row.

    y = r + discount Q_target(o', argmax Q_choice(o', legal a')),  e = Q(o, a) - y,  L = mean(w l(e)).
    dL / dQ(o, a) = w l'(e) / B. If dueling, Q = V + A - mean(A): dL / dV is that, and dL / dA_j = [j = a] of
    it minus a share of 1 / A.
    """
    size, num_actions = settings.batch_size, next_values.shape[1]
    d_q = output(shape.mlp, shape.q_layer, size, size, work.d_outputs)
    share = np.float32(1.0 / size)
    loss = value_sum = error_sum = 0.0
    for i in range(size):
        row = first + i
        best, highest = 0, _ZERO
        for a in range(num_actions):
            score = work.q[size + i, a] if settings.double else next_values[i, a]
            if batch.next_mask.size and not batch.next_mask[row, a]:
                score = _FILLER
            if a == 0 or score > highest:
                best, highest = a, score
        action = batch.action[row, 0]
        value = work.q[i, action]
        error = value - (batch.reward[row] + batch.discount[row] * next_values[i, best])
        absolute = abs(error)
        if settings.huber:
            d_value = min(max(error, -_ONE), _ONE)
            row_loss = _HALF * error * error if absolute <= _ONE else absolute - _HALF
        else:
            d_value = _TWO * error
            row_loss = error * error
        if batch.weight.size:
            d_value *= batch.weight[row]
            row_loss *= batch.weight[row]
        d_value *= share
        errors[row] = error
        loss += row_loss
        value_sum += value
        error_sum += absolute
        spread = d_value / np.float32(num_actions) if shape.value_layer >= 0 else _ZERO
        for a in range(num_actions):
            d_q[i, a] = -spread
        d_q[i, action] += d_value
        if shape.value_layer >= 0:
            output(shape.mlp, shape.value_layer, size, size, work.d_outputs)[i, 0] = d_value
    stats[LOSS], stats[VALUE], stats[ERROR] = loss / size, value_sum / size, error_sum / size


@matrix_entry
def learn(
    shape: QShape,
    vectors: QVectors,
    batch: QRows,
    settings: QSettings,
    num_steps: int,
    work: QScratch,
    errors: Array,
    table: Array,
) -> int:
    """One gradient step for each row of `table` [steps, NUM_STATS]; returns Adam's step count.

    A gradient that is not finite is not applied; its norm in the table shows it. errors: [N].
    """
    flat, target, grad, first, second = vectors
    size, num_passed = settings.batch_size, len(work.x)
    # Until the target network moves, one pass computes the values of several steps: larger products are
    # faster.
    num_ahead = len(work.next_values) if settings.tau == 1.0 else size
    for k in range(len(table)):
        begin = k * size
        start = begin % num_ahead
        if start == 0:
            ahead = batch.next_flat[begin : begin + num_ahead]
            _compute_values(shape, target, ahead, work.outputs, work.next_values[: len(ahead)])
        copy_rows(batch.flat, begin, work.x, 0, size)
        if settings.double:  # one pass over both observations of a transition
            copy_rows(batch.next_flat, begin, work.x, size, size)
        _compute_values(shape, flat, work.x, work.outputs, work.q)
        next_values = work.next_values[start : start + size]
        _td_errors(shape, batch, begin, settings, work, next_values, errors, table[k])
        x = work.x[:size]
        backward(shape.mlp, flat, grad, x, x, num_passed, work.outputs, work.d_outputs, work.spare)
        norm = math.sqrt(np.dot(grad, grad))
        table[k, GRAD_NORM] = norm
        if not math.isfinite(norm):
            continue
        num_steps += 1
        clip = settings.max_grad_norm / max(norm, settings.max_grad_norm)
        step_adam(flat, grad, first, second, num_steps, settings.learning_rate, clip, ADAM_EPSILON)
        if settings.tau < 1.0:
            tau = np.float32(settings.tau)
            for i in range(len(flat)):
                target[i] += tau * (flat[i] - target[i])
    return num_steps
