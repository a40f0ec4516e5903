"""Log-probabilities and entropies of stored actions as tensors, for algorithms that learn a distribution."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mission_gym.actions import ActionKind, ActionSpec
from mission_gym.policy.sampling import FILLER, HALF_LOG_2PI, part_columns, split_groups


class Distribution:
    """The action distribution of one action space."""

    def __init__(self, action: ActionSpec, device: torch.device) -> None:
        self.action = action
        columns = part_columns(action.nvec)
        self._columns = None if columns is None else torch.from_numpy(columns).to(device)

    def __call__(
        self, outputs: Tensor, log_std: Tensor | None, action: Tensor, illegal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """outputs [N, P], action [N, K], illegal bool [N, M] -> log-probability [N], entropy [N]."""
        if self.action.kind != "composite":
            return self._log_prob_entropy(self.action.kind, outputs, log_std, action, illegal)
        # Groups are independent given the observation, so log-probabilities and entropies add.
        pairs = [
            self._log_prob_entropy(
                group.kind, outputs[:, group.outputs], log_std, action[:, group.stored], illegal
            )
            for group in split_groups(self.action)
        ]
        log_probs, entropies = zip(*pairs, strict=True)
        return sum(log_probs[1:], log_probs[0]), sum(entropies[1:], entropies[0])

    def _log_prob_entropy(
        self,
        kind: ActionKind,
        outputs: Tensor,
        log_std: Tensor | None,
        action: Tensor,
        illegal: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The same for one group of numbers."""
        if kind == "box":
            assert log_std is not None
            z = (action - outputs) * torch.exp(-log_std)
            log_prob = (-0.5 * z.square() - log_std - HALF_LOG_2PI).sum(-1)
            return log_prob, (log_std + 0.5 + HALF_LOG_2PI).sum().expand(len(outputs))
        if kind == "binary":
            log_prob = -F.binary_cross_entropy_with_logits(outputs, action.float(), reduction="none").sum(-1)
            entropy = F.softplus(outputs) - outputs * torch.sigmoid(outputs)
            return log_prob, entropy.sum(-1)
        if illegal is not None:
            outputs = outputs.masked_fill(illegal, FILLER)
        log_p = F.log_softmax(self._split_parts(outputs), dim=-1)
        log_prob = log_p.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
        log_prob = log_prob.sum(-1) if len(self.action.nvec) > 1 else log_prob.squeeze(-1)
        p = log_p.exp()
        if illegal is not None or self._columns is not None:
            # 0 log 0 = 0: an illegal entry may hold -inf, which would make the product NaN.
            log_p = log_p.masked_fill(p == 0, 0.0)
        return log_prob, -(p * log_p).sum((-1, -2))

    def _split_parts(self, logits: Tensor) -> Tensor:
        """Flat logits as [N, K, W]."""
        if self._columns is None:
            return logits.reshape(len(logits), len(self.action.nvec), self.action.nvec[0])
        padded = F.pad(logits, (0, 1), value=FILLER)  # column -1 is the padding
        return padded[:, self._columns]
