"""Action distributions with hand-written gradients, compiled, for the analytic kernel.

`forward` gives the log-probability of stored actions [B, K]; `backward` turns d loss / d log pi [B] into
d loss / d actor outputs [B, P], with an entropy bonus [B] added, and gives the entropy [B]. An action may
have categories, bits and real numbers, in this order. They are independent: the categories write
log-probability and entropy, 0 where there are none, and the others add theirs. Actions are float32 for every
kind, so that one compiled pass serves all.
"""

from __future__ import annotations

import math

import numpy as np

from mission_gym.algorithms.ppo.network import Scratch
from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym.policy.sampling import FILLER, HALF_LOG_2PI

_ZERO, _ONE, _FILLER = np.float32(0.0), np.float32(1.0), np.float32(FILLER)


@kernel
def forward_categories(
    params: Array, mask: Array, edges: Array, action: Array, p: Array, log_p: Array, log_prob: Array
) -> None:
    """A softmax for each part of the logits: part k holds the columns edges[k] to edges[k + 1].

    mask: bool [B, P], or empty if everything is legal. A masked entry has p = 0 and log p = the filler.
    """
    for i in range(len(action)):
        chosen = 0.0
        for k in range(len(edges) - 1):
            highest = _FILLER
            for j in range(edges[k], edges[k + 1]):
                z = params[i, j] if mask.size == 0 or mask[i, j] else _FILLER
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
        log_prob[i] = chosen


@kernel
def backward_categories(edges: Array, action: Array, work: Scratch) -> None:
    p, log_p, slope, bonus, d_params = work.p, work.log_p, work.slope, work.bonus, work.d_params
    for i in range(len(action)):
        whole = 0.0
        for k in range(len(edges) - 1):
            part = _ZERO
            for j in range(edges[k], edges[k + 1]):
                part -= p[i, j] * log_p[i, j]
            for j in range(edges[k], edges[k + 1]):
                d_params[i, j] = p[i, j] * (bonus[i] * (log_p[i, j] + part) - slope[i])
            d_params[i, edges[k] + int(action[i, k])] += slope[i]
            whole += float(part)
        work.entropy[i] = whole


@kernel
def forward_bits(
    params: Array, first: int, last: int, action: Array, k: int, p: Array, log_p: Array, log_prob: Array
) -> None:
    """Independent bits, columns first to last of the outputs and from k on of the actions; p is their
    probability and log_p that of 0."""
    for i in range(len(action)):
        chosen = 0.0
        for j in range(first, last):
            z = float(params[i, j])
            p[i, j] = 1.0 / (1.0 + math.exp(-z))
            softplus = max(z, 0.0) + math.log1p(math.exp(-abs(z)))
            log_p[i, j] = -softplus
            chosen += action[i, k + j - first] * z - softplus
        log_prob[i] += chosen


@kernel
def backward_bits(first: int, last: int, action: Array, k: int, work: Scratch) -> None:
    slope, bonus = work.slope, work.bonus
    for i in range(len(action)):
        whole = 0.0
        for j in range(first, last):
            z, q = work.params[i, j], work.p[i, j]
            work.d_params[i, j] = slope[i] * (action[i, k + j - first] - q) + bonus[i] * z * q * (_ONE - q)
            whole -= work.log_p[i, j] + z * q
        work.entropy[i] += whole


@kernel
def forward_reals(
    params: Array, first: int, log_std: Array, action: Array, k: int, z: Array, log_prob: Array
) -> None:
    """A mean for each number, columns from `first` on of the outputs and from k on of the actions, and a
    log-deviation that does not depend on the state."""
    for i in range(len(action)):
        chosen = 0.0
        for j in range(len(log_std)):
            z[i, first + j] = (action[i, k + j] - params[i, first + j]) * math.exp(-log_std[j])
            chosen -= 0.5 * z[i, first + j] * z[i, first + j] + log_std[j] + HALF_LOG_2PI
        log_prob[i] += chosen


@kernel
def backward_reals(first: int, log_std: Array, d_log_std: Array, work: Scratch) -> None:
    z, slope, bonus = work.p, work.slope, work.bonus
    whole = 0.0
    for j in range(len(log_std)):
        whole += log_std[j] + 0.5 + HALF_LOG_2PI
        inverse, total = np.float32(math.exp(-log_std[j])), 0.0
        for i in range(len(slope)):
            work.d_params[i, first + j] = slope[i] * z[i, first + j] * inverse
            total += slope[i] * (z[i, first + j] * z[i, first + j] - _ONE) - bonus[i]
        d_log_std[j] = total
    for i in range(len(slope)):
        work.entropy[i] += whole
