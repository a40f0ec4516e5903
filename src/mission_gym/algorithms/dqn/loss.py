"""DQN's loss, in the order of its equations: the one place to read and to edit.

In: a minibatch as tensors. Out: the loss and its statistics. The torch kernel calls it. The compiled kernel
is verified against this file whenever a learner is made, and is not used if they disagree.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mission_gym.policy.sampling import FILLER


class QMinibatch(NamedTuple):
    """Transitions of the replay, and the outputs of both networks for them; A actions."""

    values: Tensor  # Q(o, .) [B, A], of the network that learns
    action: Tensor  # int64 [B]
    reward: Tensor  # n-step, discounted [B]
    discount: Tensor  # [B], 0 if terminated
    next_values: Tensor  # Q(o', .) of the target network [B, A]
    next_scores: Tensor  # Q(o', .) of the network that chooses the action: online (double) or target [B, A]
    next_mask: Tensor | None  # bool [B, A]
    weight: Tensor | None  # of prioritised replay [B]


class QLosses(NamedTuple):
    """The loss and its statistics; means over the rows."""

    total: Tensor
    value: Tensor  # Q(o, a)
    error: Tensor  # Q(o, a) - y [B]


def compute_targets(batch: QMinibatch) -> Tensor:
    """y = r + discount Q_target(o', argmax Q_choice(o', legal a'))."""
    scores = batch.next_scores
    if batch.next_mask is not None:
        scores = scores.masked_fill(~batch.next_mask, FILLER)
    best = scores.argmax(dim=1, keepdim=True)
    return batch.reward + batch.discount * batch.next_values.gather(1, best).squeeze(1)


def compute_losses(batch: QMinibatch, huber: bool) -> QLosses:
    """L = E[w l(Q(o, a) - y)], l quadratic, or with `huber` linear beyond an error of 1."""
    with torch.no_grad():
        target = compute_targets(batch)
    value = batch.values.gather(1, batch.action.unsqueeze(1)).squeeze(1)
    error = value - target
    losses = F.huber_loss(value, target, reduction="none") if huber else error.square()
    total = (losses if batch.weight is None else losses * batch.weight).mean()
    return QLosses(total, value.mean(), error.detach())
