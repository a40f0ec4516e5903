"""The compiled form of `loss` and of the action distributions: the same equations, each with its derivative.

Edit `loss` first. If this file computes something else, the compiled kernel fails its verification and torch
trains. An action may have categories, bits and real numbers, in this order. They are independent: the
categories write log-probability and entropy, 0 if there are none, and the others add theirs. Actions are
float32 for every kind, so that one compiled pass serves all. In the gradients, d_log_prob = dL / d log pi,
and d_entropy is the weight of the entropy in -L.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mission_gym.algorithms.ppo.section import LOG_RATIO_LIMIT
from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym.learner.loops import Real
from mission_gym.policy.sampling import FILLER, HALF_LOG_2PI

_ZERO, _ONE, _FILLER = np.float32(0.0), np.float32(1.0), np.float32(FILLER)
_LIMIT = np.float32(LOG_RATIO_LIMIT)


class ActionScratch(NamedTuple):
    """Arrays for the action distributions of B rows, reused by every step."""

    p: Array  # float32 [B, P]: probabilities of categories and bits; z of real numbers
    log_p: Array  # float32 [B, P]: log-probabilities of categories, and of zero bits
    log_prob: Array  # float32 [B]
    d_log_prob: Array
    d_entropy: Array
    entropy: Array


@kernel
def clip_surrogate(
    log_prob: Array, old_log_prob: Array, advantage: Array, weight: Array, clip_range: Real, d_log_prob: Array
) -> tuple[Real, Real, Real, Real]:
    """L = -sum w min(r A, clip(r, 1 - c, 1 + c) A) over rows [B] whose weights sum to 1; r = pi / pi_old.

    dL / d log pi = -w r A, or 0 if the clipped branch is the smaller one. Returns the loss, the KL estimate
    mean(r - 1 - log r), the share of clipped rows and the largest |r - 1|.
    """
    loss = kl = clipped = 0.0
    worst = _ZERO
    for i in range(len(d_log_prob)):
        log_ratio = log_prob[i] - old_log_prob[i]
        if log_ratio > _LIMIT:  # not `min`, which may drop NaN
            log_ratio = _LIMIT
        ratio = np.float32(math.exp(log_ratio))
        error = ratio - _ONE
        weighted = weight[i] * advantage[i]
        d_log_prob[i] = -weighted * ratio
        taken: Real = ratio
        if abs(error) > clip_range:
            clipped += weight[i]
            # The clipped branch is the smaller one, and flat, if the ratio left on the gainful side.
            if (error > 0) == (advantage[i] > 0):
                taken = _ONE + (clip_range if error > 0 else -clip_range)
                d_log_prob[i] = 0.0
        loss -= weighted * taken
        kl += weight[i] * (error - log_ratio)
        # True for NaN, too: a ratio that is not a number must show.
        if not abs(error) <= worst:
            worst = abs(error)
    return loss, kl, clipped, worst


@kernel
def fit_values(values: Array, returns: Array, weight: Array, vf_coef: float, d_values: Array) -> Real:
    """L = sum w (V - G)^2 over rows [B]; writes d (vf_coef L) / dV = 2 vf_coef w (V - G) to `d_values`."""
    loss: Real = 0.0
    for i in range(len(values)):
        error = values[i] - returns[i]
        loss += weight[i] * error * error
        d_values[i] = np.float32(2.0 * vf_coef) * weight[i] * error
    return loss


@kernel
def forward_categories(outputs: Array, mask: Array, edges: Array, action: Array, work: ActionScratch) -> None:
    """A softmax for each part of the logits; part k has the columns edges[k] to edges[k + 1].

    mask: bool [B, P], or empty if everything is legal. An illegal entry has p = 0 and log p = the filler.
    """
    p, log_p = work.p, work.log_p
    for i in range(len(action)):
        chosen = 0.0
        for k in range(len(edges) - 1):
            highest = _FILLER
            for j in range(edges[k], edges[k + 1]):
                z = outputs[i, j] if mask.size == 0 or mask[i, j] else _FILLER
                log_p[i, j] = z
                highest = max(highest, z)
            total = 0.0
            for j in range(edges[k], edges[k + 1]):
                e = math.exp(log_p[i, j] - highest) if log_p[i, j] > _FILLER else 0.0
                p[i, j] = e
                total += e
            log_total = np.float32(math.log(total))
            for j in range(edges[k], edges[k + 1]):
                p[i, j] /= total
                log_p[i, j] = max(log_p[i, j] - highest - log_total, _FILLER)
            chosen += log_p[i, edges[k] + int(action[i, k])]
        work.log_prob[i] = chosen


@kernel
def backward_categories(edges: Array, action: Array, d_outputs: Array, work: ActionScratch) -> None:
    """d log p_a / dz_j = [j = a] - p_j,  H = -sum p log p,  dH / dz_j = -p_j (log p_j + H).

    dL / dz_j = d_log_prob ([j = a] - p_j) + d_entropy p_j (log p_j + H).
    """
    p, log_p, d_log_prob, d_entropy = work.p, work.log_p, work.d_log_prob, work.d_entropy
    for i in range(len(action)):
        whole = 0.0
        for k in range(len(edges) - 1):
            entropy = _ZERO
            for j in range(edges[k], edges[k + 1]):
                entropy -= p[i, j] * log_p[i, j]
            for j in range(edges[k], edges[k + 1]):
                d_outputs[i, j] = p[i, j] * (d_entropy[i] * (log_p[i, j] + entropy) - d_log_prob[i])
            d_outputs[i, edges[k] + int(action[i, k])] += d_log_prob[i]
            whole += float(entropy)
        work.entropy[i] = whole


@kernel
def forward_bits(
    outputs: Array, first: int, last: int, action: Array, first_bit: int, work: ActionScratch
) -> None:
    """Independent bits with q = sigmoid(z): log pi = a z - softplus(z). Columns first to last of the outputs,
    and from first_bit on of the actions."""
    for i in range(len(action)):
        chosen = 0.0
        for j in range(first, last):
            z = float(outputs[i, j])
            work.p[i, j] = 1.0 / (1.0 + math.exp(-z))
            softplus = max(z, 0.0) + math.log1p(math.exp(-abs(z)))
            work.log_p[i, j] = -softplus
            chosen += action[i, first_bit + j - first] * z - softplus
        work.log_prob[i] += chosen


@kernel
def backward_bits(
    outputs: Array,
    d_outputs: Array,
    first: int,
    last: int,
    action: Array,
    first_bit: int,
    work: ActionScratch,
) -> None:
    """d log pi / dz = a - q,  H = softplus(z) - z q,  dH / dz = -z q (1 - q).

    dL / dz = d_log_prob (a - q) + d_entropy z q (1 - q).
    """
    d_log_prob, d_entropy = work.d_log_prob, work.d_entropy
    for i in range(len(action)):
        whole = 0.0
        for j in range(first, last):
            z, q, bit = outputs[i, j], work.p[i, j], action[i, first_bit + j - first]
            d_outputs[i, j] = d_log_prob[i] * (bit - q) + d_entropy[i] * z * q * (_ONE - q)
            whole -= work.log_p[i, j] + z * q
        work.entropy[i] += whole


@kernel
def forward_reals(
    outputs: Array, first: int, log_std: Array, action: Array, first_real: int, work: ActionScratch
) -> None:
    """log pi = -sum(z^2 / 2 + log std + log(2 pi) / 2), z = (a - mean) / std. The standard deviation does not
    depend on the observation. z is kept in `work.p`."""
    z = work.p
    for i in range(len(action)):
        chosen = 0.0
        for j in range(len(log_std)):
            z[i, first + j] = (action[i, first_real + j] - outputs[i, first + j]) * math.exp(-log_std[j])
            chosen -= 0.5 * z[i, first + j] * z[i, first + j] + log_std[j] + HALF_LOG_2PI
        work.log_prob[i] += chosen


@kernel
def backward_reals(
    d_outputs: Array, first: int, log_std: Array, d_log_std: Array, work: ActionScratch
) -> None:
    """d log pi / d mean = z / std,  d log pi / d log std = z^2 - 1,  H = sum(log std + 1/2 + log(2 pi) / 2).

    dL / d mean = d_log_prob z / std,  dL / d log std = sum_i d_log_prob (z^2 - 1) - d_entropy.
    """
    z, d_log_prob, d_entropy = work.p, work.d_log_prob, work.d_entropy
    whole = 0.0
    for j in range(len(log_std)):
        whole += log_std[j] + 0.5 + HALF_LOG_2PI
        inverse, total = np.float32(math.exp(-log_std[j])), 0.0
        for i in range(len(d_log_prob)):
            d_outputs[i, first + j] = d_log_prob[i] * z[i, first + j] * inverse
            total += d_log_prob[i] * (z[i, first + j] * z[i, first + j] - _ONE) - d_entropy[i]
        d_log_std[j] = total
    for i in range(len(d_log_prob)):
        work.entropy[i] += whole
