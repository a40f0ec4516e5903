"""Gradient steps on minibatches, compiled as one call without the GIL: the compiled form of the torch
kernel's.

Threads share each minibatch; see `learner.ranks`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mission_gym.algorithms.ppo.compiled_loss import (
    ActionScratch,
    backward_bits,
    backward_categories,
    backward_reals,
    clip_surrogate,
    fit_values,
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
    LOSS,
    POLICY_LOSS,
    RATIO_ERROR,
    VALUE_LOSS,
)
from mission_gym.algorithms.ppo.section import ADVANTAGE_FLOOR, StepSettings
from mission_gym.compiled import kernel, matrix_entry, matrix_kernel
from mission_gym.data import Array
from mission_gym.learner.loops import step_adam
from mission_gym.learner.mlp import Mlp, backward, forward, output
from mission_gym.learner.ranks import Ranks, Vectors, add_gradients, find_part, meet


class Shape(NamedTuple):
    """The networks and the action. The last two layers are the heads: actor outputs, then the value."""

    mlp: Mlp
    num_actor_flat: int  # inputs of the actor, the first of the critic's
    edges: Array  # int64: columns of the parts of categorical logits
    num_outputs: int  # of the actor: these logits, those of bits, then means of real numbers
    num_reals: int
    num_critic: int  # parameters of the critic, the first of the vector


class SampleArrays(NamedTuple):
    """Transitions: all of a block, or the rows of a minibatch that one rank learns from."""

    flat: Array  # float32 [B, F]
    action: Array  # float32 [B, K]
    mask: Array  # bool [B, M], or empty
    weight: Array  # float32 [B]; those of a whole minibatch sum to 1
    log_prob: Array  # float32 [B], of the policy before this update
    advantage: Array  # float32 [B]; in a minibatch normalised, and times the importance
    returns: Array  # float32 [B]
    importance: Array  # float32 [B], or empty


class Scratch(NamedTuple):
    """The arrays of a rank, kept between steps: allocating them again would take as long as the products."""

    batch: SampleArrays
    actor_flat: Array  # float32 [B, A]: the actor's inputs; the same as `batch.flat` if it reads them all
    outputs: Array  # float32, flat: those of every layer for B rows
    d_outputs: Array
    spare: Array  # see `mlp.backward`
    actions: ActionScratch


@matrix_kernel
def _forward_actions(
    shape: Shape, log_std: Array, outputs: Array, action: Array, mask: Array, work: ActionScratch
) -> None:
    """The log-probabilities of actions, from the actor's outputs."""
    edges, bits, reals = shape.edges, shape.edges[-1], shape.num_outputs - shape.num_reals
    forward_categories(outputs, mask, edges, action, work)
    if bits < reals:
        forward_bits(outputs, bits, reals, action, len(edges) - 1, work)
    if shape.num_reals:
        forward_reals(outputs, reals, log_std, action, action.shape[1] - shape.num_reals, work)


@matrix_kernel
def _learn(
    shape: Shape, flat: Array, grad: Array, work: Scratch, settings: StepSettings, stats: Array
) -> None:
    """The gradient of the rows in `work`; losses, entropy, KL and clip fraction as weighted sums over these
    rows, and the largest |ratio - 1|, to `stats`."""
    batch, actions, num_rows = work.batch, work.actions, len(work.actor_flat)
    num_layers, num_reals = len(shape.mlp.layers), shape.num_reals
    forward(shape.mlp, flat, work.actor_flat, batch.flat, work.outputs)
    outputs = output(shape.mlp, num_layers - 2, num_rows, num_rows, work.outputs)
    values = output(shape.mlp, num_layers - 1, num_rows, num_rows, work.outputs).reshape(num_rows)
    d_outputs = output(shape.mlp, num_layers - 2, num_rows, num_rows, work.d_outputs)
    d_values = output(shape.mlp, num_layers - 1, num_rows, num_rows, work.d_outputs).reshape(num_rows)
    log_std = flat[len(flat) - num_reals :]
    _forward_actions(shape, log_std, outputs, batch.action, batch.mask, actions)

    clip_range = np.float32(settings.clip_range)
    policy_loss, kl, clipped, worst = clip_surrogate(
        actions.log_prob, batch.log_prob, batch.advantage, batch.weight, clip_range, actions.d_log_prob
    )
    for i in range(num_rows):
        actions.d_entropy[i] = batch.weight[i] * np.float32(settings.ent_coef)
    edges, bits, reals = shape.edges, shape.edges[-1], shape.num_outputs - num_reals
    backward_categories(edges, batch.action, d_outputs, actions)
    if bits < reals:
        backward_bits(outputs, d_outputs, bits, reals, batch.action, len(edges) - 1, actions)
    if num_reals:
        backward_reals(d_outputs, reals, log_std, grad[len(grad) - num_reals :], actions)
    entropy = 0.0
    for i in range(num_rows):
        entropy += batch.weight[i] * actions.entropy[i]
    value_loss = fit_values(values, batch.returns, batch.weight, settings.vf_coef, d_values)
    backward(
        shape.mlp, flat, grad, work.actor_flat, batch.flat, num_rows, work.outputs, work.d_outputs, work.spare
    )
    stats[LOSS] = policy_loss + settings.vf_coef * value_loss - settings.ent_coef * entropy
    stats[POLICY_LOSS], stats[VALUE_LOSS], stats[ENTROPY] = policy_loss, value_loss, entropy
    stats[APPROX_KL], stats[CLIP_FRACTION], stats[RATIO_ERROR] = kl, clipped, worst


@kernel
def _gather(samples: SampleArrays, ids: Array, first: int, work: Scratch, normalize_advantage: bool) -> None:
    """Copy the rank's rows of a minibatch, from `first` on; advantages are normalised over the whole
    minibatch."""
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
        if work.actor_flat.shape[1] < rows.flat.shape[1]:
            for j in range(work.actor_flat.shape[1]):
                work.actor_flat[row, j] = samples.flat[i, j]
        for j in range(rows.action.shape[1]):
            rows.action[row, j] = samples.action[i, j]
        for j in range(rows.mask.shape[1]):
            rows.mask[row, j] = samples.mask[i, j]
        rows.weight[row] = samples.weight[i] / total
        rows.log_prob[row] = samples.log_prob[i]
        rows.returns[row] = samples.returns[i]
        rows.advantage[row] = (samples.advantage[i] - mean) * scale
        if samples.importance.size:
            rows.advantage[row] *= samples.importance[i]


@kernel
def _sum_stats(partial: Array, sums: Array) -> None:
    """The statistics of all ranks: sums, and the largest ratio error. Column 0 is the norm."""
    for column in range(1, len(sums)):
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
    vectors: Vectors,
    samples: SampleArrays,
    order: Array,
    settings: StepSettings,
    num_steps: int,
    work: Scratch,
    rank: int,
    ranks: Ranks,
    table: Array,
) -> int:
    """One gradient step for each minibatch, a row of `order`; returns Adam's step count.

    table [num minibatches, columns]: statistics. A gradient that is not finite is not applied. The last
    column of the ranks' statistics is the square of the critic's gradient, that of the norm the square of the
    actor's.
    """
    flat, first, second, grads = vectors
    num_ranks, size = grads.shape
    low, high = find_part(size, rank, num_ranks)
    split = min(max(shape.num_critic, low), high)  # this rank's share of the critic ends here
    arrivals = 0
    for k in range(len(order)):
        _gather(samples, order[k], order.shape[1] * rank // num_ranks, work, settings.normalize_advantage)
        _learn(shape, flat, grads[rank], work, settings, ranks.partial[rank])
        arrivals = add_gradients(vectors, rank, ranks, arrivals)
        critic, actor = grads[0, low:split], grads[0, split:high]
        ranks.partial[rank, -1] = np.dot(critic, critic)
        ranks.partial[rank, GRAD_NORM] = np.dot(actor, actor)
        arrivals = meet(ranks, arrivals)  # the squares of all parts are known
        critic_square = actor_square = 0.0
        for other in range(num_ranks):
            critic_square += ranks.partial[other, -1]
            actor_square += ranks.partial[other, GRAD_NORM]
        norm = math.sqrt(critic_square + actor_square)
        if math.isfinite(norm):
            num_steps += 1
            for start, end, square in ((low, split, critic_square), (split, high, actor_square)):
                clip = settings.max_grad_norm / max(math.sqrt(square), settings.max_grad_norm)
                step_adam(
                    flat[start:end], grads[0, start:end], first[start:end], second[start:end], num_steps,
                    settings.learning_rate, clip, ADAM_EPSILON,
                )  # fmt: skip
        if rank == 0:
            _sum_stats(ranks.partial, table[k])
            table[k, GRAD_NORM] = norm
        arrivals = meet(ranks, arrivals)  # all parameters are updated before the next forward pass
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
    actor_x, num_rows, num_layers = x, len(x), len(shape.mlp.layers)
    if shape.num_actor_flat < x.shape[1]:
        actor_x = work.actor_flat
        for i in range(num_rows):
            for j in range(shape.num_actor_flat):
                actor_x[i, j] = x[i, j]
    forward(shape.mlp, flat, actor_x, x, work.outputs)
    outputs = output(shape.mlp, num_layers - 2, num_rows, num_rows, work.outputs)
    log_std = flat[len(flat) - shape.num_reals :]
    _forward_actions(shape, log_std, outputs, action, mask, work.actions)
    for i in range(len(action)):
        log_prob[i] = work.actions.log_prob[i]
    value = output(shape.mlp, num_layers - 1, num_rows, num_rows, work.outputs)
    for i in range(num_rows):
        values[i] = value[i, 0]
