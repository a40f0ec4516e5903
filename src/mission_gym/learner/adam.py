"""Adam on one flat tensor: all parameters and gradients of a network are views of two of them, so that the
norm, the clipping and the step are one call each, whatever the network."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from mission_gym.data import Array
from mission_gym.learner import ADAM_BETAS


class FlatAdam:
    """Takes over the parameters of a model; `flat` and `grad` are their values and gradients.

    Every tensor stays where it is, also when arrays are loaded: a captured graph knows them by address.
    """

    def __init__(self, model: nn.Module, epsilon: float) -> None:
        self._names = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
        self.flat, self.grad = _flatten_parameters(model)
        self._epsilon = epsilon
        self._is_fused = self.flat.device.type != "mps"
        self._first, self._second = torch.zeros_like(self.flat.data), torch.zeros_like(self.flat.data)
        self._count = torch.zeros((), device=self.flat.device if self._is_fused else "cpu")

    @cached_property
    def _adam(self) -> torch.optim.Adam:
        """torch's own, made when the first step is: that loads its compiler, for seconds."""
        adam = torch.optim.Adam(
            [self.flat],
            lr=0.0,
            betas=ADAM_BETAS,
            eps=self._epsilon,
            fused=self._is_fused,
            capturable=self.flat.device.type == "cuda",
        )
        adam.state[self.flat] = {"step": self._count, "exp_avg": self._first, "exp_avg_sq": self._second}
        return adam

    @property
    def state(self) -> tuple[Tensor, ...]:
        """Everything that a step changes."""
        return self.flat.data, self._first, self._second, self._count

    def clip(self, max_grad_norm: float | Tensor) -> Tensor:
        """Clip the gradient; returns the norm before, without leaving the device."""
        norm: Tensor = torch.linalg.vector_norm(self.grad)
        self.grad.mul_((max_grad_norm / (norm + 1e-6)).clamp_max(1.0))
        return norm

    def step(self, learning_rate: float | Tensor) -> None:
        """One step. A rate that is a tensor on the device is read anew by each replay of a graph."""
        self._adam.param_groups[0]["lr"] = learning_rate
        self._adam.step()

    def arrays(self) -> dict[str, Array]:
        """Copies of the moments and the count of steps, by name."""
        arrays = {f"mean.{name}": part for name, part in self._split(self._first).items()}
        arrays |= {f"square.{name}": part for name, part in self._split(self._second).items()}
        return arrays | {"step": np.array(float(self._count), np.float32)}

    def load(self, arrays: dict[str, Array]) -> None:
        """Copy moments and count in."""
        for moment, prefix in ((self._first, "mean"), (self._second, "square")):
            parts = [arrays[f"{prefix}.{name}"].ravel() for name in self._names]
            moment.copy_(torch.from_numpy(np.concatenate(parts)))
        self._count.fill_(float(arrays["step"]))

    def gradient(self) -> dict[str, Array]:
        """Copies of the gradient by parameter."""
        return self._split(self.grad)

    def _split(self, flat: Tensor) -> dict[str, Array]:
        """A flat tensor in the order of the parameters as arrays by name."""
        parts = flat.cpu().numpy()
        ends = np.cumsum([math.prod(shape) for shape in self._names.values()])
        pieces = np.split(parts, ends[:-1])
        return {
            name: piece.reshape(shape).copy()
            for (name, shape), piece in zip(self._names.items(), pieces, strict=True)
        }


def _flatten_parameters(model: nn.Module) -> tuple[nn.Parameter, Tensor]:
    """Make every parameter and gradient of the model a view of one flat tensor each."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat.data[start:end].view_as(parameter)
        parameter.grad = flat.grad[start:end].view_as(parameter)
        start = end
    return flat, flat.grad
