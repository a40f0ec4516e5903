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
from mission_gym.policy.transfer import send
from mission_gym.policy.trunks import SQRT2, Inputs, make_linear, make_trunk


class NoisyLinear(nn.Linear):
    """A linear layer whose weights carry factorised noise, where it is set: `num_noise` numbers."""

    def __init__(self, num_in: int, num_out: int, sigma: float) -> None:
        super().__init__(num_in, num_out)
        start = sigma / num_in**0.5
        self.weight_sigma = nn.Parameter(torch.full((num_out, num_in), start))
        self.bias_sigma = nn.Parameter(torch.full((num_out,), start))
        self.num_noise = num_in + num_out
        self.noise: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.noise is None:
            return super().forward(x)
        for_in, for_out = torch.split(self.noise, [self.in_features, self.out_features])
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

    def draw_noise(self, rng: np.random.Generator) -> Array:
        """The noise of every noisy layer, one behind the other."""
        drawn = [draw_layer_noise(rng, layer.in_features, layer.out_features) for layer in self.noisy]
        return np.concatenate([part for layer in drawn for part in layer])

    def set_noise(self, noise: Tensor | None) -> None:
        """Give every noisy layer its part; None: play without."""
        sizes = [layer.num_noise for layer in self.noisy]
        parts = [None] * len(sizes) if noise is None else torch.split(noise, sizes)
        for layer, part in zip(self.noisy, parts, strict=True):
            layer.noise = part


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
        if self._model.noisy:
            drawn = None if noise is None else self._model.draw_noise(noise_stream(noise))
            self._model.set_noise(None if drawn is None else send(drawn, self.device))
        return choose(self._compute(self._model, obs), mask, noise, self._epsilon)
