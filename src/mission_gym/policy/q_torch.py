"""The torch form of a network of action values, and the acting wrapper for those that are not plain MLPs.

Pictures, sequences and own networks are read by `trunks`. All but the last hidden layer are shared; the
last one and the output are a stream, two of them where it is dueling, noisy where that explores.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mission_gym.data import ActOut, Array, Leaves, Weights
from mission_gym.policy.choosing import EPSILON, choose, draw_layer_noise, noise_stream
from mission_gym.policy.layout import PolicySpec
from mission_gym.policy.q_numpy import stream_names
from mission_gym.policy.torch_form import ACTIVATIONS, TorchActing
from mission_gym.policy.trunks import SQRT2, Inputs, make_linear, make_trunk


class NoisyLinear(nn.Linear):
    """A linear layer whose weights carry factorised noise, drawn by `disturb` and taken away by `calm`."""

    def __init__(self, num_in: int, num_out: int, sigma: float) -> None:
        super().__init__(num_in, num_out)
        start = sigma / num_in**0.5
        self.weight_sigma = nn.Parameter(torch.full((num_out, num_in), start))
        self.bias_sigma = nn.Parameter(torch.full((num_out,), start))
        self._noise: tuple[Tensor, Tensor] | None = None

    def disturb(self, rng: np.random.Generator) -> None:
        drawn = draw_layer_noise(rng, self.in_features, self.out_features)
        for_in, for_out = (torch.from_numpy(each).to(self.weight.device) for each in drawn)
        self._noise = for_out, for_in

    def calm(self) -> None:
        self._noise = None

    def forward(self, x: Tensor) -> Tensor:
        if self._noise is None:
            return super().forward(x)
        for_out, for_in = self._noise
        weight = self.weight + self.weight_sigma * torch.outer(for_out, for_in)
        return F.linear(x, weight, self.bias + self.bias_sigma * for_out)


class QNetwork(nn.Module):
    """Action values [N, A] for one PolicySpec, weights drawn on the CPU from `seed`."""

    def __init__(self, spec: PolicySpec, seed: int) -> None:
        super().__init__()
        assert spec.q is not None
        generator = torch.Generator().manual_seed(seed)
        sigma = spec.q.noisy_sigma
        self.trunk, (width, _) = make_trunk(spec, seed, generator)
        arch = () if spec.network is not None else spec.network_arch
        activation = ACTIVATIONS[spec.activation]

        def layer(num_in: int, num_out: int, gain: float, noisy: bool) -> nn.Linear:
            if sigma is None or not noisy:
                return make_linear(num_in, num_out, gain, generator)
            made = NoisyLinear(num_in, num_out, sigma)
            nn.init.orthogonal_(made.weight, gain, generator=generator)
            nn.init.zeros_(made.bias)
            return made

        def hidden(num_in: int, num_out: int, noisy: bool) -> list[nn.Module]:
            made, bound = layer(num_in, num_out, SQRT2, noisy), num_in**-0.5
            # Without biases every unit bends at the same point, and values are learned half as fast.
            nn.init.uniform_(made.bias, -bound, bound, generator=generator)
            return [made, activation()]

        body: list[nn.Module] = []
        for num_out in arch[:-1]:
            body += hidden(width, num_out, noisy=False)
            width = num_out
        self.body = nn.Sequential(*body)

        def stream(num_out: int) -> nn.Sequential:
            top = hidden(width, arch[-1], noisy=True) if arch else []
            # Values near 0 at first: nothing is promised that was not seen.
            return nn.Sequential(*top, layer(arch[-1] if arch else width, num_out, 0.01, noisy=True))

        for name in stream_names(spec):
            self.add_module(name, stream(spec.action.num_params if name == "q" else 1))
        self.noisy = [module for module in self.modules() if isinstance(module, NoisyLinear)]

    def forward(self, inputs: Inputs) -> Tensor:
        flat, shaped = inputs
        features = flat if self.trunk is None else self.trunk(flat, shaped)
        x = self.body(features[0] if isinstance(features, tuple) else features)
        advantage = cast(Tensor, self.get_submodule("q")(x))
        if not hasattr(self, "value"):
            return advantage
        value = cast(Tensor, self.get_submodule("value")(x))
        return advantage + (value - advantage.mean(dim=1, keepdim=True))

    def disturb(self, rng: np.random.Generator) -> None:
        """Draw the noise of every noisy layer."""
        for module in self.noisy:
            module.disturb(rng)

    def calm(self) -> None:
        """Play without noise."""
        for module in self.noisy:
            module.calm()


class TorchQPolicy(TorchActing):
    """Acts greedily on action values, or explores where noise is given."""

    def __init__(self, spec: PolicySpec, device: str = "cpu") -> None:
        self._model = QNetwork(spec, seed=0)
        super().__init__(spec, self._model, device)
        self._epsilon = 0.0

    def load(self, weights: Weights) -> None:
        super().load(weights)
        self._epsilon = float(weights.arrays[EPSILON])

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        """Actions for leaves [B, ...]; `noise` [B, 1] explores, None plays greedily."""
        if noise is None:
            self._model.calm()
        else:
            self._model.disturb(noise_stream(noise))
        return choose(self._compute(self._model, obs), mask, noise, self._epsilon)
