"""PPO's loss, in the order of its equations: the one place to read and to edit.

In: a minibatch as tensors [B]. Out: the loss and its statistics. The torch kernel calls it on every device.
The compiled kernel is verified against this file whenever a learner is made. If the two disagree, torch
trains and the cause is printed, so an edit here always takes effect. A field added to `Losses` appears as the
metric `train/loss_<field>`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mission_gym.algorithms.ppo.section import ADVANTAGE_FLOOR, LOG_RATIO_LIMIT, StepSettings


class Minibatch(NamedTuple):
    """Rows of a rollout, each field [B], and the network's present outputs for them."""

    log_prob: Tensor  # log pi(a|o), of the policy that learns
    entropy: Tensor
    value: Tensor  # V(o), of the critic that learns
    old_log_prob: Tensor  # log pi(a|o) before this update
    old_value: Tensor  # V(o) before this update
    returns: Tensor  # G, the target of the value
    advantage: Tensor  # A, normalised over the minibatch, times the importance of older policies' rows
    weight: Tensor  # sums to 1; 0 for invalid transitions


class Losses(NamedTuple):
    """The loss and its statistics, means over the weights."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    ratio_error: Tensor  # max |ratio - 1|


def normalize_advantages(advantage: Tensor, weight: Tensor) -> Tensor:
    """A <- (A - mean A) / std A over the last axis, with weights that sum to 1."""
    centered = advantage - (advantage * weight).sum(-1, keepdim=True)
    std = (centered.square() * weight).sum(-1, keepdim=True).sqrt()
    return centered / std.clamp_min(ADVANTAGE_FLOOR)


def compute_losses(batch: Minibatch, settings: StepSettings) -> Losses:
    """L = L_policy + vf_coef L_value - ent_coef H."""
    clip_range = settings.clip_range

    # r = pi / pi_old
    log_ratio = batch.log_prob - batch.old_log_prob
    with torch.no_grad():
        # Limits the size of r, not its gradient: the probability of a bad action must still decrease.
        log_ratio.clamp_(max=LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()

    # L_policy = -E[min(r A, clip(r, 1 - c, 1 + c) A)]
    moved = ratio * batch.advantage
    with torch.no_grad():  # a clipped ratio has no gradient
        bounded = ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * batch.advantage
        error = ratio - 1.0
        distance = error.abs()
        kl, beyond = error - log_ratio, (distance > clip_range).float()
    surrogate = torch.where(moved <= bounded, moved, bounded)
    # L_value = E[(V - G)^2]
    squared = F.mse_loss(batch.value, batch.returns, reduction="none")
    # H = E[entropy of pi]
    rows = torch.stack([surrogate, squared, batch.entropy, kl, beyond])
    gain, value, entropy, approx_kl, clip_fraction = (rows * batch.weight).sum(-1).unbind()
    policy = -gain
    return Losses(
        total=policy + settings.vf_coef * value - settings.ent_coef * entropy,
        policy=policy,
        value=value,
        entropy=entropy,
        approx_kl=approx_kl,
        clip_fraction=clip_fraction,
        ratio_error=distance.amax(),
    )
