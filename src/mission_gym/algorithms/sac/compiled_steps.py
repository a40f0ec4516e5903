"""Gradient steps of SAC, several in one compiled call without the GIL: the compiled form of the torch
kernel's.

Threads share each minibatch; see `learner.ranks`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mission_gym.algorithms.sac.compiled_loss import (
    Draw,
    backward_actions,
    compute_targets,
    draw_actions,
    fit_values,
    follow_values,
)
from mission_gym.algorithms.sac.kernel import (
    ACTOR_LOSS,
    ACTOR_NORM,
    ACTOR_STEPS,
    ADAM_EPSILON,
    ALPHA,
    CRITIC_LOSS,
    ENTROPY,
    ERROR,
    GRAD_NORM,
    NUM_CRITICS,
    VALUE,
)
from mission_gym.compiled import kernel, matrix_entry, matrix_kernel
from mission_gym.data import Array
from mission_gym.learner.loops import copy_rows, step_adam
from mission_gym.learner.mlp import COLUMN, Mlp, backward, backward_inputs, forward, output
from mission_gym.learner.ranks import Ranks, Vectors, add_gradients, find_part, meet


class SacShape(NamedTuple):
    """The networks. The heads of the critics are their last layers."""

    actor: Mlp
    critics: Mlp
    num_quantiles: int


class SacStepSettings(NamedTuple):
    """The settings of the gradient steps of a call."""

    learning_rate: float
    tau: float
    policy_delay: int
    first: int  # number of the first step in the run
    num_dropped: int
    target_entropy: float  # NaN: the temperature is not learned


class SacRows(NamedTuple):
    """The transitions of some gradient steps, [N, ...]."""

    flat: Array  # float32 [N, F]
    next_flat: Array
    action: Array  # float32 [N, K]
    reward: Array  # float32 [N]
    discount: Array
    weight: Array  # float32 [N], or empty
    noise: Array  # float32 [steps, 2, B, K]


class SacVectors(NamedTuple):
    """The vectors of the trained networks, and the parameters of the critics' targets."""

    actor: Vectors
    critic: Vectors
    temperature: Vectors
    target: Array


class Position(NamedTuple):
    """The part of a minibatch that a rank learns from: its rows from `low` on, in a step of the call."""

    step: int
    low: int
    rank: int


class SacScratch(NamedTuple):
    """The arrays of a rank, kept between steps: allocating them again would take as long as the products.

    The rank learns from R rows of each minibatch. The actor passes 2 R rows: observations and next ones.
    """

    actor_x: Array  # float32 [2 R, A]
    actor_outputs: Array  # float32, flat: those of every layer
    actor_d_outputs: Array
    critic_x: Array  # float32 [R, F + K]
    critic_outputs: Array
    critic_d_outputs: Array
    spare: Array
    draw: Draw
    next_draw: Draw
    action: Array  # float32 [R, K], of the policy
    d_action: Array
    target: Array  # float32 [R, C M]


# Columns of the statistics of a rank, all sums over its rows but for _SQUARE: of its part of a gradient.
_LOSS_SUM, _VALUE_SUM, _ERROR_SUM, _SQUARE, _LOG_PROB_SUM = range(5)
NUM_SUMS = 5


@matrix_kernel
def _values(shape: SacShape, num_rows: int, outputs: Array) -> Array:
    """The outputs [C, R, M] of the critics' heads, as a view of those of all layers."""
    num_layers, num = len(shape.critics.layers), shape.num_quantiles
    start = shape.critics.layers[num_layers - NUM_CRITICS, COLUMN] * num_rows
    return outputs[start : start + NUM_CRITICS * num_rows * num].reshape((NUM_CRITICS, num_rows, num))


@matrix_kernel
def _fit_critics(
    shape: SacShape,
    vectors: SacVectors,
    batch: SacRows,
    at: Position,
    moves_actor: bool,
    alpha: float,
    settings: SacStepSettings,
    work: SacScratch,
    errors: Array,
    sums: Array,
) -> None:
    """The gradient of the critics' loss for the rank's rows; also draws the policy's own actions if the actor
    moves."""
    size, num_rows, num_flat = batch.noise.shape[2], len(work.critic_x), batch.flat.shape[1]
    critic, begin = vectors.critic, at.step * size + at.low
    # One pass of the actor over both observations of a transition; products of more rows are faster.
    ahead = num_rows if moves_actor else 0
    copy_rows(batch.flat, begin, work.actor_x, 0, ahead)
    copy_rows(batch.next_flat, begin, work.actor_x, ahead, num_rows)
    x = work.actor_x[: ahead + num_rows]
    forward(shape.actor, vectors.actor.flat, x, x, work.actor_outputs)
    outputs = output(shape.actor, len(shape.actor.layers) - 1, len(x), len(x), work.actor_outputs)
    noise = batch.noise[at.step, :, at.low : at.low + num_rows]
    action = work.critic_x[:, num_flat:]
    draw_actions(outputs[ahead:], noise[1], action, work.next_draw)
    if moves_actor:
        draw_actions(outputs[:num_rows], noise[0], work.action, work.draw)
    copy_rows(batch.next_flat, begin, work.critic_x, 0, num_rows)
    forward(shape.critics, vectors.target, work.critic_x, work.critic_x, work.critic_outputs)
    rows, target = slice(begin, begin + num_rows), work.target
    compute_targets(
        batch.reward[rows],
        batch.discount[rows],
        _values(shape, num_rows, work.critic_outputs),
        work.next_draw.log_prob,
        alpha,
        settings.num_dropped,
        target,
    )
    num_targets = 1
    if shape.num_quantiles > 1:
        num_targets = NUM_CRITICS * (shape.num_quantiles - settings.num_dropped)
    copy_rows(batch.flat, begin, work.critic_x, 0, num_rows)
    copy_rows(batch.action, begin, action, 0, num_rows)
    forward(shape.critics, critic.flat, work.critic_x, work.critic_x, work.critic_outputs)
    sums[_LOSS_SUM], sums[_VALUE_SUM], sums[_ERROR_SUM] = fit_values(
        _values(shape, num_rows, work.critic_outputs),
        target,
        num_targets,
        batch.weight[rows] if batch.weight.size else batch.weight,
        size,
        _values(shape, num_rows, work.critic_d_outputs),
        errors[rows],
    )
    backward(
        shape.critics, critic.flat, critic.grads[at.rank], work.critic_x, work.critic_x, num_rows,
        work.critic_outputs, work.critic_d_outputs, work.spare,
    )  # fmt: skip


@matrix_kernel
def _improve_actor(
    shape: SacShape,
    vectors: Vectors,
    critic_flat: Array,
    rank: int,
    size: int,
    alpha: float,
    work: SacScratch,
    sums: Array,
) -> None:
    """The gradient of the actor's loss for the rank's rows, whose observations and actions are in `work`."""
    num_rows, num_reals = work.action.shape
    num_flat = work.critic_x.shape[1] - num_reals
    copy_rows(work.action, 0, work.critic_x[:, num_flat:], 0, num_rows)
    forward(shape.critics, critic_flat, work.critic_x, work.critic_x, work.critic_outputs)
    values = _values(shape, num_rows, work.critic_outputs)
    value = follow_values(values, size, _values(shape, num_rows, work.critic_d_outputs))
    backward_inputs(
        shape.critics, critic_flat, num_flat, num_rows, work.critic_outputs, work.critic_d_outputs,
        work.spare, work.d_action,
    )  # fmt: skip
    head = len(shape.actor.layers) - 1
    d_outputs = output(shape.actor, head, num_rows, num_rows, work.actor_d_outputs)
    backward_actions(work.action, work.draw, work.d_action, alpha / size, d_outputs)
    x = work.actor_x[:num_rows]
    backward(
        shape.actor, vectors.flat, vectors.grads[rank], x, x, len(work.actor_x), work.actor_outputs,
        work.actor_d_outputs, work.spare,
    )  # fmt: skip
    log_prob = 0.0
    for i in range(num_rows):
        log_prob += work.draw.log_prob[i]
    sums[_LOSS_SUM], sums[_LOG_PROB_SUM] = alpha * log_prob - value, log_prob


@kernel
def _add(partial: Array, column: int) -> float:
    total = 0.0
    for rank in range(len(partial)):
        total += partial[rank, column]
    return total


@matrix_kernel
def _find_norm(vectors: Vectors, rank: int, ranks: Ranks, arrivals: int) -> tuple[float, int]:
    """The norm of the gradient of all ranks, added up in the first one's, and the arrivals."""
    num_ranks, size = vectors.grads.shape
    arrivals = add_gradients(vectors, rank, ranks, arrivals)
    low, high = find_part(size, rank, num_ranks)
    ranks.partial[rank, _SQUARE] = np.dot(vectors.grads[0, low:high], vectors.grads[0, low:high])
    arrivals = meet(ranks, arrivals)  # the squares of all parts are known
    return math.sqrt(_add(ranks.partial, _SQUARE)), arrivals


@matrix_kernel
def _step(vectors: Vectors, rank: int, number: int, learning_rate: float) -> None:
    """Adam's step on the rank's part of a network."""
    flat, first, second, grads = vectors
    low, high = find_part(len(flat), rank, len(grads))
    step_adam(
        flat[low:high], grads[0, low:high], first[low:high], second[low:high], number, learning_rate, 1.0,
        ADAM_EPSILON,
    )  # fmt: skip


@matrix_entry
def learn(
    shape: SacShape,
    vectors: SacVectors,
    batch: SacRows,
    settings: SacStepSettings,
    counts: Array,
    work: SacScratch,
    rank: int,
    ranks: Ranks,
    errors: Array,
    table: Array,
) -> tuple[int, int, int]:
    """One gradient step for each row of `table` [steps, NUM_STATS]; returns Adam's step counts of actor,
    critics and temperature, which begin at `counts`.

    errors: [N]. A gradient that is not finite is not applied; its norm in the table shows it.
    """
    actor, critic, temperature, target = vectors
    num_ranks, size = critic.grads.shape[0], batch.noise.shape[2]
    low, _ = find_part(size, rank, num_ranks)
    first, last = find_part(len(target), rank, num_ranks)
    num_actor, num_critic, num_temperature = counts[0], counts[1], counts[2]
    arrivals, sums, tau = 0, ranks.partial[rank], np.float32(settings.tau)
    for k in range(len(table)):
        moves_actor = (settings.first + k) % settings.policy_delay == 0
        alpha = math.exp(temperature.flat[0])
        at = Position(k, low, rank)
        _fit_critics(shape, vectors, batch, at, moves_actor, alpha, settings, work, errors, sums)
        norm, arrivals = _find_norm(critic, rank, ranks, arrivals)
        if rank == 0:
            table[k, :] = 0.0
            table[k, CRITIC_LOSS] = _add(ranks.partial, _LOSS_SUM) / size
            table[k, VALUE] = _add(ranks.partial, _VALUE_SUM) / size
            table[k, ERROR] = _add(ranks.partial, _ERROR_SUM) / size
            table[k, ALPHA] = alpha
        if math.isfinite(norm):
            num_critic += 1
            _step(critic, rank, num_critic, settings.learning_rate)
        arrivals = meet(ranks, arrivals)  # the critics have moved
        if moves_actor:
            _improve_actor(shape, actor, critic.flat, rank, size, alpha, work, sums)
            actor_norm, arrivals = _find_norm(actor, rank, ranks, arrivals)
            log_prob = _add(ranks.partial, _LOG_PROB_SUM) / size
            if rank == 0:
                table[k, ACTOR_STEPS], table[k, ACTOR_NORM] = 1.0, actor_norm
                table[k, ACTOR_LOSS] = _add(ranks.partial, _LOSS_SUM) / size
                table[k, ENTROPY] = -log_prob
            if not math.isfinite(actor_norm):
                norm = actor_norm
            if math.isfinite(norm):
                num_actor += 1
                _step(actor, rank, num_actor, settings.learning_rate)
                if not math.isnan(settings.target_entropy):
                    num_temperature += 1
                    if rank == 0:
                        # L = -log alpha (E[log pi] + target entropy)
                        temperature.grads[0, 0] = -(log_prob + settings.target_entropy)
                        step_adam(
                            temperature.flat, temperature.grads[0], temperature.first, temperature.second,
                            num_temperature, settings.learning_rate, 1.0, ADAM_EPSILON,
                        )  # fmt: skip
        if rank == 0:
            table[k, GRAD_NORM] = norm
        if math.isfinite(norm):
            for i in range(first, last):
                target[i] += tau * (critic.flat[i] - target[i])
        arrivals = meet(ranks, arrivals)  # all parameters have moved
    return num_actor, num_critic, num_temperature
