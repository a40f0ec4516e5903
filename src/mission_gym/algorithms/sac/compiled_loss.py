"""The compiled form of `loss`, equation by equation, with gradients by hand.

Edit `loss` first. If a function here computes something else, the compiled kernel fails its verification and
torch trains. R rows of a minibatch of B, K real numbers per action, C critics with M outputs each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mission_gym.compiled import kernel, sum_kernel
from mission_gym.data import Array
from mission_gym.learner.loops import Real
from mission_gym.policy.sampling import HALF_LOG_2PI, LOG_STD_RANGE

_LOW, _HALF_RANGE = LOG_STD_RANGE[0], 0.5 * (LOG_STD_RANGE[1] - LOG_STD_RANGE[0])
_LOG_2 = math.log(2.0)
_ZERO, _HALF, _ONE = (np.float32(number) for number in (0.0, 0.5, 1.0))


class Draw(NamedTuple):
    """Actions that were drawn from the policy, and what their gradient needs."""

    log_prob: Array  # float32 [R]
    scaled_noise: Array  # float32 [R, K]: std noise
    d_log_std: Array  # float32 [R, K]: d log std / d raw log std


@kernel
def draw_actions(outputs: Array, noise: Array, action: Array, draw: Draw) -> None:
    """See `loss.sample_actions`. outputs [R, 2 K], noise and action [R, K].

    With e = exp(-2 |u|): tanh |u| = (1 - e) / (1 + e), and log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + e)).
    """
    num = noise.shape[1]
    for i in range(len(outputs)):
        log_prob = 0.0
        for k in range(num):
            bent = math.tanh(float(outputs[i, num + k]))
            log_std = _LOW + _HALF_RANGE * (1.0 + bent)
            scaled = math.exp(log_std) * noise[i, k]
            u = outputs[i, k] + scaled
            e = math.exp(-2.0 * abs(u))
            size = (1.0 - e) / (1.0 + e)
            action[i, k] = size if u > 0.0 else -size
            log_normal = -0.5 * noise[i, k] * noise[i, k] - log_std - HALF_LOG_2PI
            log_prob += log_normal - 2.0 * (_LOG_2 - abs(u) - math.log1p(e))
            draw.scaled_noise[i, k] = scaled
            draw.d_log_std[i, k] = _HALF_RANGE * (1.0 - bent * bent)
        draw.log_prob[i] = log_prob


@kernel
def backward_actions(action: Array, draw: Draw, d_action: Array, d_log_prob: float, d_outputs: Array) -> None:
    """From gradients by actions [R, K] and by each log-probability to that of the outputs [R, 2 K].

    a = tanh(u), so da/du = 1 - a^2 and d log pi / du = 2 a; u = mean + std noise; d log pi / d log std = -1,
    in addition to its part through u.
    """
    num = action.shape[1]
    weight = np.float32(d_log_prob)
    for i in range(len(action)):
        for k in range(num):
            a = action[i, k]
            d_u = d_action[i, k] * (_ONE - a * a) + weight * (a + a)
            d_outputs[i, k] = d_u
            d_outputs[i, num + k] = (d_u * draw.scaled_noise[i, k] - weight) * draw.d_log_std[i, k]


@kernel
def compute_targets(
    reward: Array,
    discount: Array,
    next_values: Array,
    next_log_prob: Array,
    alpha: float,
    num_dropped: int,
    target: Array,
) -> None:
    """See `loss.compute_targets`; the order of quantiles does not matter. reward, discount and next_log_prob
    [R], next_values [C, R, M], target [R, C M], of which the first C (M - num_dropped) are used."""
    num_critics, num_rows, num = next_values.shape
    for i in range(num_rows):
        soft = np.float32(alpha * next_log_prob[i])
        count = 1
        if num == 1:
            target[i, 0] = next_values[0, i, 0]
            for c in range(1, num_critics):
                # NaN stays NaN.
                if not next_values[c, i, 0] >= target[i, 0]:
                    target[i, 0] = next_values[c, i, 0]
        else:
            count = num_critics * num
            for c in range(num_critics):
                for m in range(num):
                    target[i, c * num + m] = next_values[c, i, m]
            for _ in range(num_critics * num_dropped):
                highest = 0
                for t in range(1, count):
                    if target[i, t] > target[i, highest]:
                        highest = t
                count -= 1
                target[i, highest], target[i, count] = target[i, count], target[i, highest]
        for t in range(count):
            target[i, t] = reward[i] + discount[i] * (target[i, t] - soft)


@sum_kernel
def _fit_quantile(value: Real, target: Array, num: int, share: Real) -> tuple[Real, Real]:
    """The quantile Huber loss of an output against all targets [num], and its slope, both times num.

    With q the output, p its share and g = y - q for a target y: L = mean |p - 1[g < 0]| H(g), H(g) = g^2 / 2
    for |g| <= 1, else |g| - 1/2. So dL/dq = -mean |p - 1[g < 0]| clip(g, -1, 1).
    """
    loss = slope = _ZERO
    for t in range(num):
        gap = target[t] - value
        size = abs(gap)
        near = min(size, _ONE)
        sided = share if gap >= _ZERO else _ONE - share
        loss += sided * near * (size - _HALF * near)
        slope -= sided * (min(max(gap, -_ONE), _ONE) + _ZERO * gap)  # NaN stays NaN
    return loss, slope


@kernel
def fit_values(
    values: Array,
    target: Array,
    num_targets: int,
    weight: Array,
    size: int,
    d_values: Array,
    errors: Array,
) -> tuple[float, float, float]:
    """See `loss.critic_loss`. values and d_values [C, R, M]; weight [R] or empty; size: B.

    L = sum w / B sum_c l_c. For M = 1, l = (V - y)^2 / 2 and dL/dV = w / B (V - y). For quantiles, l is the
    sum over m of the loss of `_fit_quantile` with share (m + 1/2) / M, and dL/dV_m = w / B times its slope.
    Returns the sums over rows of loss, mean value and |error|. errors [R].
    """
    num_critics, num_rows, num = values.shape
    part = np.float32(1.0 / num_targets)
    loss_sum = value_sum = error_sum = 0.0
    for i in range(num_rows):
        scale = (weight[i] if weight.size else _ONE) / np.float32(size)
        value = loss = 0.0
        for c in range(num_critics):
            for m in range(num):
                value += values[c, i, m]
                if num == 1:
                    error = values[c, i, 0] - target[i, 0]
                    loss += 0.5 * error * error
                    d_values[c, i, 0] = scale * error
                else:
                    share = np.float32((m + 0.5) / num)
                    fit, slope = _fit_quantile(values[c, i, m], target[i], num_targets, share)
                    loss += float(fit * part)
                    d_values[c, i, m] = scale * part * slope
        mean = 0.0
        for t in range(num_targets):
            mean += target[i, t]
        value /= num_critics * num
        errors[i] = value - mean / num_targets
        loss_sum += loss * float(scale) * size
        value_sum += value
        error_sum += abs(errors[i])
    return loss_sum, value_sum, error_sum


@kernel
def follow_values(values: Array, size: int, d_values: Array) -> float:
    """The sum of Q(o, a) over rows, and the gradient of L = -mean Q(o, a); see `loss.actor_loss`.

    For M = 1, Q = min_c V_c, so dL/dV_c = -1 / B for the lowest critic, else 0. For quantiles, Q is the mean
    of all, so dL/dV_cm = -1 / (B C M). values and d_values [C, R, M]; size: B.
    """
    num_critics, num_rows, num = values.shape
    share, total = np.float32(-1.0 / size), 0.0
    for i in range(num_rows):
        if num == 1:
            lowest = 0
            for c in range(1, num_critics):
                if not values[c, i, 0] >= values[lowest, i, 0]:
                    lowest = c
            for c in range(num_critics):
                d_values[c, i, 0] = share if c == lowest else _ZERO
            total += values[lowest, i, 0]
        else:
            value = 0.0
            for c in range(num_critics):
                for m in range(num):
                    value += values[c, i, m]
                    d_values[c, i, m] = share / np.float32(num_critics * num)
            total += value / (num_critics * num)
    return total
