"""The torch form: actor and critic networks, and the acting wrapper for those that are not plain MLPs.

MLP: actor and critic are separate. Pictures, sequences and networks of the user's own are read by a trunk for
both (`trunks`). What the critic alone sees comes last among the inputs: the actor reads a prefix of them, and
acting needs no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from mission_gym.data import ActOut, Array, Leaves, Weights
from mission_gym.policy.encoding import EncodingPolicy
from mission_gym.policy.layout import PolicySpec
from mission_gym.policy.sampling import Sampler
from mission_gym.policy.transfer import Resident
from mission_gym.policy.trunks import SQRT2, Inputs, make_linear, make_trunk

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def _mlp(
    sizes: tuple[int, ...],
    activation: type[nn.Module],
    head: tuple[int, float],
    generator: torch.Generator | None,
) -> nn.Sequential:
    """Hidden layers, each followed by the activation, and a linear head of (width, gain)."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [make_linear(num_in, num_out, SQRT2, generator), activation()]
    return nn.Sequential(*layers, make_linear(sizes[-1], *head, generator))


class ActorCritic(nn.Module):
    """`actor_params`, `value` and `log_std` for one PolicySpec, weights drawn on the CPU from `seed`; without
    one an MLP's are left to be loaded, since to draw large ones takes long."""

    log_std: nn.Parameter | None

    def __init__(self, spec: PolicySpec, seed: int | None) -> None:
        super().__init__()
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        activation = ACTIVATIONS[spec.activation]
        self.trunk, widths = make_trunk(spec, seed or 0, generator)
        self.num_seen = spec.seen.num_flat
        hidden = () if spec.network is not None else spec.network_arch
        self.actor = _mlp((widths[0], *hidden), activation, (spec.action.num_params, 0.01), generator)
        self.critic = _mlp((widths[1], *hidden), activation, (1, 1.0), generator)
        self.log_std = (
            nn.Parameter(torch.full((spec.action.num_reals,), spec.log_std_init))
            if spec.action.num_reals
            else None
        )

    def actor_params(self, inputs: Inputs) -> Tensor:
        """Actor outputs [N, P]; those inputs are enough that the actor sees."""
        return cast(Tensor, self.actor(self._features(inputs)[0]))

    def forward(self, inputs: Inputs, precision: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Actor outputs [N, P] and values [N], float32. Products before the heads have the precision."""
        *actor, actor_head = self.actor
        *critic, critic_head = self.critic
        with torch.autocast(
            inputs[0].device.type, precision, enabled=precision != torch.float32, cache_enabled=False
        ):
            for_actor, for_critic = self._features(inputs)
            for layer in actor:
                for_actor = layer(for_actor)
            for layer in critic:
                for_critic = layer(for_critic)
        return actor_head(for_actor.float()), critic_head(for_critic.float()).squeeze(-1)

    def _features(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        flat, shaped = inputs
        if self.trunk is None:
            return flat[:, : self.num_seen], flat
        return cast(tuple[Tensor, Tensor], self.trunk(flat, shaped))


@cache
def _open_acting_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all policies of a device: torch has few, and would hand out the learner's again."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class TorchActing(EncodingPolicy):
    """Acts with a torch network: for pictures, sequences and networks of the user's own."""

    def __init__(self, spec: PolicySpec, model: nn.Module, device: str) -> None:
        super().__init__(spec)
        self.device = torch.device(device)
        self._network = model.to(self.device).eval()
        self._flat = Resident(self.device)
        self._shaped = [Resident(self.device) for _ in self._encoder.shaped]
        # A learner beside this queues a whole epoch; an action must not wait behind it.
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._stream = _open_acting_stream(self.device)
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def _on_stream(self) -> AbstractContextManager[Any]:
        # torch takes None for a stream, too, but then asks MPS for what it does not have.
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def load(self, weights: Weights) -> None:
        """Copy the weights in."""
        super().load(weights)
        with self._on_stream():
            load_arrays(self._network, weights.arrays)

    def _compute(self, network: Callable[[Inputs], Tensor], obs: Leaves) -> Array:
        """What the network says of leaves [B, ...]."""
        encoded = self._encoder.encode(obs)
        with torch.inference_mode(), self._on_stream():
            flat = self._flat.load(encoded.flat)
            shaped = tuple(
                resident.load(each) for resident, each in zip(self._shaped, encoded.shaped, strict=True)
            )
            return network((flat, shaped)).cpu().numpy()


class TorchPolicy(TorchActing):
    """Acts with the actor alone."""

    def __init__(self, spec: PolicySpec, device: str = "cpu") -> None:
        self._model = ActorCritic(spec, seed=0)
        super().__init__(spec, self._model, device)
        self._sampler = Sampler(spec.action)
        self._log_std: Array | None = None

    def load(self, weights: Weights) -> None:
        super().load(weights)
        self._log_std = weights.arrays.get("log_std")

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        """Actions for leaves [B, ...]; `noise` [B, K] explores, None plays greedily."""
        return self._sampler(self._compute(self._model.actor_params, obs), self._log_std, mask, noise)


def model_arrays(model: nn.Module) -> dict[str, Array]:
    """Every parameter and buffer of a network as a NumPy copy, by name."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()}


def load_arrays(model: nn.Module, arrays: dict[str, Array]) -> None:
    """Copy arrays by name into a network; names and shapes must fit."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))
