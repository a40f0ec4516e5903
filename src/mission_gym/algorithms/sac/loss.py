"""SAC's losses, in the order of its equations: the one place to read and to edit.

B transitions, K real numbers per action, C critics with M outputs each. M = 1: an output is the value. M > 1:
outputs are quantiles of the return. Values, rewards and the temperature alpha have the same unit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mission_gym.policy.sampling import HALF_LOG_2PI, LOG_STD_RANGE


class ActionSample(NamedTuple):
    """Actions of the policy with their log-probabilities."""

    action: Tensor  # [B, K], in -1..1
    log_prob: Tensor  # [B]


def sample_actions(outputs: Tensor, noise: Tensor) -> ActionSample:
    """a = tanh(u), u = mean + std noise, log pi(a) = log N(u) - sum log(1 - tanh(u)^2).

    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), exact for large |u|. The log of std is limited
    smoothly, so its gradient is never 0. outputs: [B, 2 K], the means, then raw log std. noise: [B, K].
    """
    mean, raw = outputs.chunk(2, dim=1)
    low, high = LOG_STD_RANGE
    log_std = low + 0.5 * (high - low) * (1.0 + raw.tanh())
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - HALF_LOG_2PI
    log_slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    return ActionSample(u.tanh(), (log_normal - log_slope).sum(dim=1))


def compute_targets(
    reward: Tensor,
    discount: Tensor,
    next_values: Tensor,
    next_log_prob: Tensor,
    alpha: Tensor,
    num_dropped: int,
) -> Tensor:
    """y = r + discount (V(o') - alpha log pi(a'|o')), a' drawn from the policy; discount is 0 if terminated.

    M = 1: V is the smaller value of the target critics, y [B, 1]. M > 1: V are the pooled quantiles of the
    target critics without the `num_dropped` highest of each, y [B, C (M - num_dropped)].
    next_values: [C, B, M], of the target critics.
    """
    if next_values.shape[2] == 1:
        state_value = next_values.amin(dim=0)
    else:
        pooled = torch.cat(next_values.unbind(), dim=1).sort(dim=1).values
        state_value = pooled[:, : pooled.shape[1] - num_dropped * len(next_values)]
    soft = state_value - (alpha * next_log_prob).unsqueeze(1)
    return reward.unsqueeze(1) + discount.unsqueeze(1) * soft


def critic_loss(values: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """M = 1: L = sum_c E[w (Q_c(o, a) - y)^2] / 2. M > 1: the quantile Huber loss of every output against
    every target. values: [C, B, M]. Returns the loss, and the mean error of each transition [B]."""
    error = (values.mean(dim=(0, 2)) - target.mean(dim=1)).detach()
    if values.shape[2] == 1:
        losses = 0.5 * (values.squeeze(2) - target.squeeze(1)).square().sum(dim=0)
    else:
        num = values.shape[2]
        shares = (torch.arange(num, device=values.device) + 0.5) / num
        gap = target.unsqueeze(1) - values.unsqueeze(3)  # [C, B, M, targets]
        size = gap.detach().abs()
        huber = torch.where(size > 1.0, gap.abs() - 0.5, 0.5 * gap.square())
        sided = (shares[:, None] - (gap.detach() < 0).to(gap.dtype)).abs()
        losses = (sided * huber).mean(dim=3).sum(dim=2).sum(dim=0)
    return (losses if weight is None else losses * weight).mean(), error


def actor_loss(values: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """L = E[alpha log pi(a|o) - Q(o, a)], a drawn from the policy. Q is the smaller value of the critics, or
    the mean of all quantiles. values: [C, B, M] of the policy's own actions."""
    value = values.amin(dim=0).squeeze(1) if values.shape[2] == 1 else values.mean(dim=(0, 2))
    return (alpha * log_prob - value).mean()


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """L = -log alpha E[log pi(a|o) + target entropy]: alpha rises while the entropy is below its target."""
    return -(log_alpha * (log_prob.detach().mean() + target_entropy))
