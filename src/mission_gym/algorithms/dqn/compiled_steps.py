"""Gradient steps of DQN, several in one compiled call without the GIL: the twin of the torch kernel's.

Edit `loss` first. Where `_judge` says something else, the compiled kernel fails its proof and torch trains.
"""

from __future__ import annotations

import math

import numpy as np

from mission_gym.algorithms.dqn.kernel import ADAM_EPSILON, ERROR, GRAD_NORM, LOSS, VALUE, QSettings
from mission_gym.algorithms.dqn.network import Scratch, Shape, Transitions
from mission_gym.algorithms.dqn.passes import backward, forward
from mission_gym.compiled import kernel, matrix_entry
from mission_gym.data import Array
from mission_gym.learner.loops import step_adam
from mission_gym.policy.sampling import FILLER

_FILLER = np.float32(FILLER)
_ZERO, _HALF, _ONE, _TWO = (np.float32(number) for number in (0.0, 0.5, 1.0, 2.0))


@kernel
def _copy_rows(source: Array, first: int, out: Array, place: int, num: int) -> None:
    for i in range(num):
        for j in range(source.shape[1]):
            out[place + i, j] = source[first + i, j]


@kernel
def _judge(
    batch: Transitions,
    first: int,
    settings: QSettings,
    dueling: bool,
    work: Scratch,
    next_values: Array,
    errors: Array,
    stats: Array,
) -> None:
    """Targets, errors and the slope of the loss, row by row, from the values of both networks.

    y = r + discount Q_target(o', argmax Q_judge(o', legal a')),  e = Q(o, a) - y,  L = mean(w l(e)).
    """
    size, num_actions = work.d_q.shape
    share = np.float32(1.0 / size)
    loss = value_sum = error_sum = 0.0
    for i in range(size):
        row = first + i
        best, highest = 0, _ZERO
        for a in range(num_actions):
            judged = work.q[size + i, a] if settings.double else next_values[i, a]
            if batch.next_mask.size and not batch.next_mask[row, a]:
                judged = _FILLER
            if a == 0 or judged > highest:
                best, highest = a, judged
        value = work.q[i, batch.action[row]]
        error = value - (batch.reward[row] + batch.discount[row] * next_values[i, best])
        size_of = abs(error)
        if settings.huber:
            slope = min(max(error, -_ONE), _ONE)
            row_loss = _HALF * error * error if size_of <= _ONE else size_of - _HALF
        else:
            slope = _TWO * error
            row_loss = error * error
        if batch.weight.size:
            slope *= batch.weight[row]
            row_loss *= batch.weight[row]
        slope *= share
        errors[row] = error
        loss += row_loss
        value_sum += value
        error_sum += size_of
        # Of a dueling network Q = V + A - mean(A).
        spread = slope / np.float32(num_actions) if dueling else _ZERO
        for a in range(num_actions):
            work.d_q[i, a] = -spread
        work.d_q[i, batch.action[row]] += slope
        work.d_value[i, 0] = slope
    stats[LOSS], stats[VALUE], stats[ERROR] = loss / size, value_sum / size, error_sum / size


@matrix_entry
def learn(
    shape: Shape,
    vectors: tuple[Array, Array, Array, Array, Array],
    batch: Transitions,
    settings: QSettings,
    num_steps: int,
    work: Scratch,
    errors: Array,
    table: Array,
) -> int:
    """One gradient step for each row of `table` [steps, NUM_STATS]; returns the steps of Adam made so far.

    vectors: parameters, target, gradient and both moments; errors [N]. A gradient that is not finite makes no
    step: its norm in the table tells.
    """
    flat, target, grad, first, second = vectors
    size, num_passed = settings.batch_size, len(work.x)
    # Until the target network moves, one pass has the values of several steps: larger products are faster.
    num_ahead = len(work.next_values) if settings.tau == 1.0 else size
    for k in range(len(table)):
        begin = k * size
        place = begin % num_ahead
        if place == 0:
            ahead = batch.next_flat[begin : begin + num_ahead]
            forward(shape, target, ahead, work, work.next_values[: len(ahead)])
        _copy_rows(batch.flat, begin, work.x, 0, size)
        if settings.double:  # one pass over both ends of a transition
            _copy_rows(batch.next_flat, begin, work.x, size, size)
        forward(shape, flat, work.x, work, work.q)
        next_values = work.next_values[place : place + size]
        _judge(batch, begin, settings, shape.num_streams > 1, work, next_values, errors, table[k])
        backward(shape, flat, grad, size, num_passed, work)
        norm = math.sqrt(np.dot(grad, grad))
        table[k, GRAD_NORM] = norm
        if not math.isfinite(norm):
            continue
        num_steps += 1
        step_adam(
            flat, grad, first, second, num_steps, settings.learning_rate,
            min(settings.max_grad_norm / (norm + 1e-6), 1.0), ADAM_EPSILON,
        )  # fmt: skip
        if settings.tau < 1.0:
            tau = np.float32(settings.tau)
            for i in range(len(flat)):
                target[i] += tau * (flat[i] - target[i])
    return num_steps
