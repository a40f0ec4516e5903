"""What a policy's outputs say of actions, as tensors: for every algorithm that learns log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mission_gym.data import ActionKind, ActionSpec
from mission_gym.policy.sampling import FILLER, HALF_LOG_2PI, part_columns, split_groups


class Distribution:
    """Log-probability and entropy of stored actions, for one action space."""

    def __init__(self, action: ActionSpec, device: torch.device) -> None:
        self.action = action
        columns = part_columns(action.nvec)
        self.columns = None if columns is None else torch.from_numpy(columns).to(device)

    def __call__(
        self, params: Tensor, log_std: Tensor | None, action: Tensor, illegal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """params [N, P], action [N, K], illegal bool [N, M] -> log-probability [N], entropy [N]."""
        if self.action.kind != "composite":
            return self._judge(self.action.kind, params, log_std, action, illegal)
        # Parts are independent given the observation, so log-probabilities and entropies add.
        judged = [
            self._judge(kind, params[:, wide], log_std, action[:, narrow], illegal)
            for kind, wide, narrow in split_groups(self.action)
        ]
        log_probs, entropies = zip(*judged, strict=True)
        return sum(log_probs[1:], log_probs[0]), sum(entropies[1:], entropies[0])

    def _judge(
        self, kind: ActionKind, params: Tensor, log_std: Tensor | None, action: Tensor, illegal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same for numbers that are drawn alike."""
        if kind == "box":
            assert log_std is not None
            z = (action - params) * torch.exp(-log_std)
            log_prob = (-0.5 * z.square() - log_std - HALF_LOG_2PI).sum(-1)
            return log_prob, (log_std + 0.5 + HALF_LOG_2PI).sum().expand(len(params))
        if kind == "binary":
            log_prob = -F.binary_cross_entropy_with_logits(params, action.float(), reduction="none").sum(-1)
            entropy = F.softplus(params) - params * torch.sigmoid(params)
            return log_prob, entropy.sum(-1)
        if illegal is not None:
            params = params.masked_fill(illegal, FILLER)
        log_p = F.log_softmax(self._parts(params), dim=-1)
        log_prob = log_p.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
        log_prob = log_prob.sum(-1) if len(self.action.nvec) > 1 else log_prob.squeeze(-1)
        p = log_p.exp()
        if illegal is not None or self.columns is not None:
            # 0 log 0 = 0: a masked entry may hold -inf, which would make the product NaN.
            log_p = log_p.masked_fill(p == 0, 0.0)
        return log_prob, -(p * log_p).sum((-1, -2))

    def _parts(self, flat: Tensor) -> Tensor:
        if self.columns is None:
            return flat.reshape(len(flat), len(self.action.nvec), self.action.nvec[0])
        padded = F.pad(flat, (0, 1), value=FILLER)  # column -1 is the padding
        return padded[:, self.columns]
