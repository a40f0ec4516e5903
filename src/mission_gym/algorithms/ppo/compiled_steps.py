"""Gradient steps on minibatches, compiled as one call without the GIL; the twin of the torch kernel's.

Threads ("ranks") learn from fixed parts of every minibatch: gradients are added in the order of the ranks,
each for its part of the vector, and they meet at a counter instead of in the interpreter. So the bits depend
on the number of ranks, and on nothing else.
"""

from __future__ import annotations

import math

import numpy as np

from mission_gym.algorithms.ppo.compiled_loss import clip_surrogate, fit_values
from mission_gym.algorithms.ppo.heads import (
    backward_bits,
    backward_categories,
    backward_reals,
    forward_bits,
    forward_categories,
    forward_reals,
)
from mission_gym.algorithms.ppo.kernel import (
    ADAM_EPSILON,
    APPROX_KL,
    CLIP_FRACTION,
    ENTROPY,
    GRAD_NORM,
    POLICY_LOSS,
    RATIO_ERROR,
    VALUE_LOSS,
)
from mission_gym.algorithms.ppo.network import Batch, Scratch, Shape
from mission_gym.algorithms.ppo.passes import backward, forward
from mission_gym.algorithms.ppo.section import ADVANTAGE_FLOOR, StepSettings
from mission_gym.compiled import atomic_add, atomic_read, kernel, matrix_entry, matrix_kernel, yield_core
from mission_gym.data import Array
from mission_gym.learner.loops import step_adam


@matrix_kernel
def _judge(shape: Shape, log_std: Array, action: Array, mask: Array, work: Scratch) -> None:
    """The log-probabilities of actions, from the actor's outputs."""
    edges, bits, reals = shape.edges, shape.edges[-1], shape.num_params - shape.num_reals
    params, p, log_p, log_prob = work.params, work.p, work.log_p, work.log_prob
    forward_categories(params, mask, edges, action, p, log_p, log_prob)
    if bits < reals:
        forward_bits(params, bits, reals, action, len(edges) - 1, p, log_p, log_prob)
    if shape.num_reals:
        forward_reals(params, reals, log_std, action, action.shape[1] - shape.num_reals, p, log_prob)


@matrix_kernel
def _judge_back(shape: Shape, log_std: Array, d_log_std: Array, action: Array, work: Scratch) -> None:
    """The slope of the loss by the actor's outputs and by log_std, and the entropies."""
    edges, bits, reals = shape.edges, shape.edges[-1], shape.num_params - shape.num_reals
    backward_categories(edges, action, work)
    if bits < reals:
        backward_bits(bits, reals, action, len(edges) - 1, work)
    if shape.num_reals:
        backward_reals(reals, log_std, d_log_std, work)


@matrix_kernel
def _learn(
    shape: Shape, flat: Array, grad: Array, work: Scratch, settings: StepSettings, stats: Array
) -> None:
    """The gradient of the rows in `work`; policy loss, value loss, entropy, KL and clip fraction as sums
    with the rows' weights, and the largest |ratio - 1|, into `stats`."""
    batch = work.batch
    forward(shape, flat, work.seen, batch.flat, work.hidden, work.params, work.values)
    log_std = flat[len(flat) - shape.num_reals :]
    _judge(shape, log_std, batch.action, batch.mask, work)
    clip_range = np.float32(settings.clip_range)
    loss, kl, clipped, worst = clip_surrogate(
        work.log_prob, batch.log_prob, batch.advantage, batch.weight, clip_range, work.slope
    )
    for i in range(len(work.bonus)):
        work.bonus[i] = batch.weight[i] * np.float32(settings.ent_coef)
    _judge_back(shape, log_std, grad[len(grad) - shape.num_reals :], batch.action, work)
    entropy = 0.0
    for i in range(len(work.entropy)):
        entropy += batch.weight[i] * work.entropy[i]
    value_loss = fit_values(work.values, batch.returns, batch.weight, settings.vf_coef, work.d_values)
    backward(shape, flat, grad, work.seen, batch.flat, work)
    stats[POLICY_LOSS], stats[VALUE_LOSS], stats[ENTROPY] = loss, value_loss, entropy
    stats[APPROX_KL], stats[CLIP_FRACTION], stats[RATIO_ERROR] = kl, clipped, worst


@kernel
def _gather(
    samples: Batch, importance: Array, ids: Array, first: int, work: Scratch, normalize_advantage: bool
) -> None:
    """The rank's rows of a minibatch, from `first` on; advantages are normalised over the whole of it."""
    rows = work.batch
    # A <- (A - mean A) / std A with weights, over all rows of the minibatch: every rank computes the same.
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
        if work.seen.shape[1] < rows.flat.shape[1]:
            for j in range(work.seen.shape[1]):
                work.seen[row, j] = samples.flat[i, j]
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
    """The statistics of all ranks: sums, and the largest ratio error."""
    for column in range(GRAD_NORM):
        sums[column] = partial[0, column]
        for other in range(1, len(partial)):
            value = partial[other, column]
            if column != RATIO_ERROR:
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
    settings: StepSettings,
    num_steps: int,
    work: Scratch,
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
        _gather(samples, importance, order[k], place, work, settings.normalize_advantage)
        _learn(shape, flat, grads[rank], work, settings, partial[rank])
        if num_ranks > 1:
            arrivals += num_ranks
            _meet(counter, arrivals)  # every rank's gradient is written, and may be read
            for other in range(1, num_ranks):
                for i in range(low, high):
                    grads[0, i] += grads[other, i]
        mine = grads[0, low:high]
        partial[rank, GRAD_NORM] = np.dot(mine, mine)
        if num_ranks > 1:
            arrivals += num_ranks
            _meet(counter, arrivals)  # the squares of all parts of the summed gradient are known
        square = 0.0
        for other in range(num_ranks):
            square += partial[other, GRAD_NORM]
        norm = math.sqrt(square)
        if math.isfinite(norm):
            num_steps += 1
            step_adam(
                flat[low:high], mine, first[low:high], second[low:high], num_steps, settings.learning_rate,
                min(settings.max_grad_norm / (norm + 1e-6), 1.0), ADAM_EPSILON,
            )  # fmt: skip
        if rank == 0:
            _sum_up(partial, table[k])
            table[k, GRAD_NORM] = norm
        if num_ranks > 1:
            arrivals += num_ranks
            _meet(counter, arrivals)  # all parameters are stepped before anybody goes forward again
    return num_steps


@matrix_entry
def evaluate(
    shape: Shape,
    flat: Array,
    x: Array,
    action: Array,
    mask: Array,
    work: Scratch,
    log_prob: Array,
    values: Array,
) -> None:
    """Log-probabilities of the first len(action) rows of x, and values of all."""
    seen = x
    if shape.num_seen < x.shape[1]:
        seen = work.seen
        for i in range(len(x)):
            for j in range(shape.num_seen):
                seen[i, j] = x[i, j]
    forward(shape, flat, seen, x, work.hidden, work.params, values)
    log_std = flat[len(flat) - shape.num_reals :]
    _judge(shape, log_std, action, mask, work)
    for i in range(len(action)):
        log_prob[i] = work.log_prob[i]
