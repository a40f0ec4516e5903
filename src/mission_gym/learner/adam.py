"""Adam on one flat tensor: all parameters and gradients of a network are views of two of them, so that the
norm, the clipping and the step are one call each, whatever the network."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from mission_gym.data import Array
from mission_gym.learner import ADAM_BETAS
from mission_gym.learner.capture import Captured, Recorder, record_cuda
from mission_gym.policy.torch_form import load_arrays
from mission_gym.policy.transfer import fetch, send

_ALIGNMENT = 64  # numbers


class FlatAdam:
    """Takes over the parameters of a model; `flat` and `grad` are their values and gradients.

    Every tensor stays where it is, also when arrays are loaded: a captured graph knows them by address.
    """

    def __init__(self, model: nn.Module, epsilon: float) -> None:
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        self._places, self._size = _lay_out(parameters)
        self.flat = nn.Parameter(self.flatten(model))
        self.grad = self.flat.grad = torch.zeros_like(self.flat)
        # What a loss is differentiated by, and where that goes.
        self._leaves: dict[str, tuple[Tensor, Tensor]] = {
            name: (parameter, self.grad[self._places[name]].view_as(parameter))
            for name, parameter in parameters.items()
        }
        self._one = torch.ones((), device=self.flat.device)
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

    def flatten(self, model: nn.Module) -> Tensor:
        """Make the parameters of a model, ours or one like it, views of one flat tensor."""
        parameters = {name: p for name, p in model.named_parameters() if name in self._places}
        flat = torch.zeros(self._size, device=next(iter(parameters.values())).device)
        for name, parameter in parameters.items():
            flat[self._places[name]] = parameter.detach().reshape(-1)
            parameter.data = flat[self._places[name]].view_as(parameter)
        return flat

    def stack(self, one: str, other: str) -> Tensor:
        """Two parameters of one shape as one [2, ...], which takes their place in `differentiate`."""
        shape, start = self._shapes[one], self._places[one].start
        assert shape == self._shapes[other]
        strides = (self._places[other].start - start, *torch.empty(shape, device="meta").stride())
        leaf, slope = (flat.as_strided((2, *shape), strides, start) for flat in (self.flat.data, self.grad))
        del self._leaves[one], self._leaves[other]
        self._leaves[f"{one}, {other}"] = leaf.requires_grad_(), slope
        return leaf

    def differentiate(self, loss: Tensor) -> None:
        """Compute the gradient of a loss into `grad`."""
        leaves, slopes = zip(*self._leaves.values(), strict=True)
        found = torch.autograd.grad(loss, leaves, self._one, materialize_grads=True)
        torch._foreach_copy_(slopes, found)

    def clip(self, max_grad_norm: float | Tensor) -> Tensor:
        """Clip the gradient; returns the norm before, without leaving the device."""
        norm: Tensor = torch.linalg.vector_norm(self.grad)
        self.grad.mul_((max_grad_norm / (norm + 1e-6)).clamp_max(1.0))
        return norm

    def step(self, learning_rate: float | Tensor, skip: Tensor | None = None) -> None:
        """One step, unless `skip`, a number on the device, is 1 and not 0. A rate that is a tensor on the
        device is read anew by each replay of a graph."""
        adam = self._adam
        adam.param_groups[0]["lr"] = learning_rate
        if skip is not None and not self._is_fused:  # MPS, where the host looks
            if not skip:
                adam.step()
            return
        adam.found_inf = skip  # type: ignore[attr-defined]  # of mixed precision: no step where it is 1
        adam.step()

    def arrays(self) -> dict[str, Array]:
        """Copies of the moments and the count of steps, by name."""
        arrays = {f"mean.{name}": part for name, part in self.split(self._first).items()}
        arrays |= {f"square.{name}": part for name, part in self.split(self._second).items()}
        return arrays | {"step": np.array(float(self._count), np.float32)}

    def load(self, arrays: dict[str, Array]) -> None:
        """Copy moments and count in."""
        for moment, prefix in ((self._first, "mean"), (self._second, "square")):
            flat = np.zeros(len(moment), np.float32)
            for name, place in self._places.items():
                flat[place] = arrays[f"{prefix}.{name}"].ravel()
            moment.copy_(send(flat, moment.device))
        self._count.fill_(float(arrays["step"]))

    def gradient(self) -> dict[str, Array]:
        """Copies of the gradient by parameter."""
        return self.split(self.grad)

    def split(self, flat: Tensor) -> dict[str, Array]:
        """A flat tensor in the order of the parameters as arrays by name."""
        array = fetch(flat.detach())
        return {name: array[place].reshape(self._shapes[name]).copy() for name, place in self._places.items()}


class TorchNetwork:
    """The state of a torch kernel: a network on a device, and Adam on its parameters.

    can_capture: whether its gradient steps decide nothing on the host, which a graph would not repeat.
    """

    def __init__(self, model: nn.Module, device: str, epsilon: float, *, can_capture: bool) -> None:
        self.device = torch.device(device)
        self.adam = FlatAdam(model.to(self.device), epsilon)
        self.notes: list[str] = []
        self.record: Recorder | None = None
        if can_capture and self.device.type == "cuda":
            self.record = partial(record_cuda, self.device)
        self._model = model
        self._captured: tuple[Hashable, Captured] | None = None

    def capture(
        self,
        key: Hashable,
        step: Callable[..., Tensor],
        inputs: Sequence[Tensor],
        more_state: Sequence[Tensor] = (),
    ) -> Callable[..., Tensor]:
        """The step for inputs like these, captured where that is possible: once, until the key is another.
        more_state: what it changes beside the network and Adam."""
        if self.record is None:
            return step
        if self._captured is None or self._captured[0] != key:
            self._captured = None  # its memory, too, before the next takes its own
            state = (*self.adam.state, *self._model.buffers(), *more_state)
            try:
                self._captured = key, Captured(step, inputs, state, self.record)
            except RuntimeError as error:  # border: drivers raise whatever they like
                self.record = None
                cause = str(error).splitlines()[0]
                self.notes.append(f"gradient steps are not captured as a graph, and take longer: {cause}")
                return step
        return self._captured[1]

    def parameters(self) -> dict[str, Array]:
        return self._name_arrays(self.adam.flat, dict(self._model.named_buffers()))

    def _name_arrays(self, flat: Tensor, buffers: dict[str, Tensor]) -> dict[str, Array]:
        """Copies of a network's arrays, in the order of its names; parameters come in one piece."""
        arrays = self.adam.split(flat)
        for name, tensor in self._model.state_dict().items():
            if name not in arrays:
                arrays[name] = fetch(buffers.get(name, tensor)).copy()
        return {name: arrays[name] for name in self._model.state_dict()}

    def keep(self) -> list[Tensor]:
        """Clones of everything that gradient steps change, on the device."""
        return [tensor.clone() for tensor in (*self.adam.state, *self._model.buffers())]

    def put_back(self, kept: list[Tensor]) -> None:
        for tensor, clone in zip((*self.adam.state, *self._model.buffers()), kept, strict=True):
            tensor.copy_(clone)

    def kept_parameters(self, kept: list[Tensor]) -> dict[str, Array]:
        """The network's arrays by name, as they were kept."""
        names = [name for name, _ in self._model.named_buffers()]
        return self._name_arrays(kept[0], dict(zip(names, kept[len(self.adam.state) :], strict=True)))

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
