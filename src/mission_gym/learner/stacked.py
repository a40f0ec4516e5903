"""Actor and critic in one pass, for accelerators: their hidden layers have equal shapes, and so each is one
batched product instead of two. It computes what the network does, from the same memory."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from mission_gym.learner.adam import FlatAdam
from mission_gym.policy.torch_form import ActorCritic
from mission_gym.policy.trunks import Inputs


def can_stack(model: ActorCritic) -> bool:
    """Whether actor and critic are MLPs that read the same, on an accelerator."""
    (first, other), hidden = (
        (cast(nn.Linear, net[0]) for net in (model.actor, model.critic)),
        len(model.actor),
    )
    same = first.in_features == other.in_features == model.num_seen and hidden > 1
    return model.trunk is None and same and first.weight.device.type != "cpu"


class StackedActorCritic:
    """See `ActorCritic.forward`."""

    def __init__(self, model: ActorCritic, adam: FlatAdam) -> None:
        *layers, self._actor_head = model.actor
        self._critic_head = model.critic[-1]
        self._layers: list[tuple[Tensor, Tensor] | nn.Module] = []
        for number, layer in enumerate(layers):
            if isinstance(layer, nn.Linear):
                weight, bias = (
                    adam.stack(f"actor.{number}.{part}", f"critic.{number}.{part}")
                    for part in ("weight", "bias")
                )
                self._layers.append((weight, bias))
            else:
                self._layers.append(layer)

    def __call__(self, inputs: Inputs, precision: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        flat, _ = inputs
        with torch.autocast(
            flat.device.type, precision, enabled=precision != torch.float32, cache_enabled=False
        ):
            x = flat.expand(2, *flat.shape)
            for layer in self._layers:
                if isinstance(layer, nn.Module):
                    x = layer(x)
                else:
                    weight, bias = layer
                    x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
        for_actor, for_critic = x.float().unbind()
        return self._actor_head(for_actor), self._critic_head(for_critic).squeeze(-1)
