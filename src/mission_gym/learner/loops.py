"""The compiled loops of the NumPy kernel: what a chain of array calls would spend most of its time on.

Each is one pass over its arrays. `tanh` is a ratio of two polynomials, fitted to the largest relative error
of 2e-8 and right within four units of the last place in float32: NumPy's takes four times as long.
"""

from __future__ import annotations

import math

import numpy as np

from mission_gym.compiled import entry, kernel
from mission_gym.data import Array
from mission_gym.policy.sampling import FILLER

Real = np.float32 | float

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_FILLER = np.float32(FILLER)
_LIMIT = np.float32(9.0)  # beyond it tanh is 1 in float32
_P0, _P1, _P2, _P3, _P4 = (
    np.float32(c) for c in (0.99999998, 0.13381052, 3.49561848e-3, 2.06095436e-5, 1.33552314e-8)
)
_Q1, _Q2, _Q3, _Q4 = (np.float32(c) for c in (0.46714368, 2.58771002e-2, 3.28568279e-4, 7.77680608e-7))


@kernel
def _clamp(x: Real, limit: Real) -> Real:
    return min(max(x, -limit), limit)


@entry
def activate_tanh(x: Array, bias: Array) -> None:
    """x = tanh(x + bias), in place; x [S, B, H], bias [S, 1, H]."""
    for s in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                v = _clamp(x[s, i, j] + bias[s, 0, j], _LIMIT)
                w = v * v
                p = (((_P4 * w + _P3) * w + _P2) * w + _P1) * w + _P0
                q = (((_Q4 * w + _Q3) * w + _Q2) * w + _Q1) * w + _ONE
                x[s, i, j] = _clamp(v * p / q, _ONE)


@entry
def backward_tanh(d: Array, h: Array, d_bias: Array) -> None:
    """d *= 1 - h^2, in place, and its sums over rows: d and h [S, B, H], d_bias [S, 1, H]."""
    d_bias[:] = 0.0
    for s in range(d.shape[0]):
        for i in range(d.shape[1]):
            for j in range(d.shape[2]):
                v = d[s, i, j] * (_ONE - h[s, i, j] * h[s, i, j])
                d[s, i, j] = v
                d_bias[s, 0, j] += v


@entry
def activate_relu(x: Array, bias: Array) -> None:
    """x = max(x + bias, 0), in place; shapes as for tanh."""
    for s in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                v = x[s, i, j] + bias[s, 0, j]
                x[s, i, j] = v if not v < _ZERO else _ZERO  # NaN stays


@entry
def backward_relu(d: Array, h: Array, d_bias: Array) -> None:
    """d = 0 where h is 0, in place, and its sums over rows; shapes as for tanh."""
    d_bias[:] = 0.0
    for s in range(d.shape[0]):
        for i in range(d.shape[1]):
            for j in range(d.shape[2]):
                v = d[s, i, j] if h[s, i, j] > _ZERO else _ZERO
                d[s, i, j] = v
                d_bias[s, 0, j] += v


@entry
def forward_categories(
    params: Array, mask: Array, edges: Array, action: Array, p: Array, log_p: Array, log_prob: Array
) -> None:
    """A softmax for each part of the logits [B, P], and the log-probability [B] of the actions [B, K].

    mask: bool [B, P], or empty if everything is legal. A masked entry has p = 0 and log p = the filler.
    """
    for i in range(len(params)):
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
            chosen += log_p[i, edges[k] + action[i, k]]
        log_prob[i] = chosen


@entry
def backward_categories(
    p: Array,
    log_p: Array,
    edges: Array,
    action: Array,
    slope: Array,
    bonus: Array,
    d_params: Array,
    entropy: Array,
) -> None:
    """d loss / d logits [B, P] from d loss / d log pi [B] and an entropy weight [B]; and the entropy [B]."""
    for i in range(len(p)):
        whole = 0.0
        for k in range(len(edges) - 1):
            part = _ZERO
            for j in range(edges[k], edges[k + 1]):
                part -= p[i, j] * log_p[i, j]
            for j in range(edges[k], edges[k + 1]):
                d_params[i, j] = p[i, j] * (bonus[i] * (log_p[i, j] + part) - slope[i])
            d_params[i, edges[k] + action[i, k]] += slope[i]
            whole += float(part)
        entropy[i] = whole


@entry
def clipped_losses(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    weight: Array,
    clip_range: Real,
    slope: Array,
) -> tuple[Real, Real, Real, Real]:
    """PPO's clipped surrogate over rows [B] whose weights sum to 1.

    Writes d loss / d log pi into `slope`; returns the loss, the KL estimate mean(ratio - 1 - log ratio), the
    share of clipped rows and the largest |ratio - 1|.
    """
    loss = kl = clipped = 0.0
    worst = _ZERO
    for i in range(len(slope)):
        log_ratio = log_prob[i] - old_log_prob[i]
        ratio = np.float32(math.exp(log_ratio))
        error = ratio - _ONE
        weighted = weight[i] * advantage[i]
        slope[i] = -weighted * ratio
        taken: Real = ratio
        if abs(error) > clip_range:
            clipped += weight[i]
            # The clipped branch is the smaller one, and flat, where the ratio left on the gainful side.
            if (error > 0) == (advantage[i] > 0):
                taken = _ONE + (clip_range if error > 0 else -clip_range)
                slope[i] = 0.0
        loss -= weighted * taken
        kl += weight[i] * (error - log_ratio)
        # A comparison that is true for NaN, too: a ratio that is none must not go unseen.
        if not abs(error) <= worst:
            worst = abs(error)
    return loss, kl, clipped, worst


@entry
def adam(
    flat: Array,
    grad: Array,
    first: Array,
    second: Array,
    scale: Real,
    step_size: Real,
    correction: Real,
    betas: tuple[Real, Real],
    epsilon: Real,
) -> None:
    """One step of Adam in place, on a gradient times `scale`; `correction` is that of the second moment."""
    beta1, beta2 = betas
    for i in range(len(flat)):
        g = grad[i] * scale
        m = first[i] * beta1 + g * (_ONE - beta1)
        v = second[i] * beta2 + g * g * (_ONE - beta2)
        first[i] = m
        second[i] = v
        flat[i] -= step_size * m / (math.sqrt(v) * correction + epsilon)
