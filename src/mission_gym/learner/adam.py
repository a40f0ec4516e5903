"""Adam on one flat tensor: all parameters and gradients of a network are views of two of them, so that the
norm, the clipping and the step are one call each, whatever the network."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from mission_gym.data import Array
from mission_gym.learner import ADAM_BETAS
from mission_gym.policy.torch_form import load_arrays, model_arrays

_ALIGNMENT = 64  # numbers


class FlatAdam:
    """Takes over the parameters of a model; `flat` and `grad` are their values and gradients.

    Every tensor stays where it is, also when arrays are loaded: a captured graph knows them by address.
    """

    def __init__(self, model: nn.Module, epsilon: float) -> None:
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        self._places, size = _lay_out(parameters)
        self.flat, self.grad = _flatten_parameters(parameters, self._places, size)
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
            flat = np.zeros(len(moment), np.float32)
            for name, place in self._places.items():
                flat[place] = arrays[f"{prefix}.{name}"].ravel()
            moment.copy_(torch.from_numpy(flat))
        self._count.fill_(float(arrays["step"]))

    def gradient(self) -> dict[str, Array]:
        """Copies of the gradient by parameter."""
        return self._split(self.grad)

    def _split(self, flat: Tensor) -> dict[str, Array]:
        """A flat tensor in the order of the parameters as arrays by name."""
        array = flat.cpu().numpy()
        return {name: array[place].reshape(self._shapes[name]).copy() for name, place in self._places.items()}


class TorchNetwork:
    """The state of a torch kernel: a network on a device, and Adam on its parameters."""

    def __init__(self, model: nn.Module, device: str, epsilon: float) -> None:
        self.device = torch.device(device)
        self.adam = FlatAdam(model.to(self.device), epsilon)
        self.notes: list[str] = []
        self._model = model

    def parameters(self) -> dict[str, Array]:
        return model_arrays(self._model)

    def load_parameters(self, arrays: dict[str, Array]) -> None:
        load_arrays(self._model, arrays)

    def optimizer(self) -> dict[str, Array]:
        return self.adam.arrays()

    def load_optimizer(self, arrays: dict[str, Array]) -> None:
        self.adam.load(arrays)


def _lay_out(parameters: dict[str, nn.Parameter]) -> tuple[dict[str, slice], int]:
    """The place of every parameter in the flat tensor, and its length.

    Kernels of accelerators load several numbers at once, and some fail at addresses that do not allow it, so
    each parameter begins at a multiple of 64 there. The gap stays 0.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in parameters.values())
    places, start = {}, 0
    for name, parameter in parameters.items():
        places[name] = slice(start, start + parameter.numel())
        start += parameter.numel() if on_cpu else -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
    return places, start


def _flatten_parameters(
    parameters: dict[str, nn.Parameter], places: dict[str, slice], size: int
) -> tuple[nn.Parameter, Tensor]:
    """Make every parameter and gradient a view of one flat tensor each."""
    device = next(iter(parameters.values())).device
    flat = nn.Parameter(torch.zeros(size, device=device))
    grad = flat.grad = torch.zeros_like(flat)
    for name, parameter in parameters.items():
        flat.data[places[name]] = parameter.detach().reshape(-1)
        parameter.data = flat.data[places[name]].view_as(parameter)
        parameter.grad = grad[places[name]].view_as(parameter)
    return flat, grad
