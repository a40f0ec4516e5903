"""The compiled twin of `loss`: the same equations, each with its derivative, row by row.

Edit `loss` first. Where this file says something else, the compiled kernel fails its proof and torch trains.
"""

from __future__ import annotations

import math

import numpy as np

from mission_gym.algorithms.ppo.section import LOG_RATIO_LIMIT
from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym.learner.loops import Real

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_LIMIT = np.float32(LOG_RATIO_LIMIT)


@kernel
def clip_surrogate(
    log_prob: Array, old_log_prob: Array, advantage: Array, weight: Array, clip_range: Real, slope: Array
) -> tuple[Real, Real, Real, Real]:
    """PPO's clipped surrogate over rows [B] whose weights sum to 1.

    Writes d loss / d log pi into `slope`; returns the loss, the KL estimate mean(ratio - 1 - log ratio), the
    share of clipped rows and the largest |ratio - 1|.
    """
    loss = kl = clipped = 0.0
    worst = _ZERO
    for i in range(len(slope)):
        log_ratio = log_prob[i] - old_log_prob[i]
        if log_ratio > _LIMIT:  # not `min`, which need not keep NaN
            log_ratio = _LIMIT
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
        # A comparison that is true for NaN, too: a ratio that is not one must not go unseen.
        if not abs(error) <= worst:
            worst = abs(error)
    return loss, kl, clipped, worst


@kernel
def fit_values(values: Array, returns: Array, weight: Array, vf_coef: float, d_values: Array) -> Real:
    """The value loss E[(V - G)^2] over rows [B]; writes d (vf_coef loss) / d V into `d_values`."""
    loss: Real = 0.0
    for i in range(len(values)):
        miss = values[i] - returns[i]
        loss += weight[i] * miss * miss
        d_values[i] = np.float32(2.0 * vf_coef) * weight[i] * miss
    return loss
