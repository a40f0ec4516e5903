"""Networks on a device with an Adam optimizer for each part, and gradient steps captured as CUDA graphs.

All parameters of a part, and their gradients, are views of two flat tensors. So the gradient norm, the
clipping and the step are one call each, whatever the network. A captured step is recorded once and replayed:
one launch stands for all of its kernels.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from mission_gym.data import Array
from mission_gym.learner import ADAM_BETAS
from mission_gym.policy.torch_forms import load_arrays
from mission_gym.policy.transfer import fetch, send

Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
_ALIGNMENT = 64  # numbers
_WARM_UPS = 3  # libraries choose algorithms and allocate workspaces in their first calls


class FlatAdam:
    """Adam on the parameters of a model; `flat` and `grad` are their values and gradients.

    No tensor ever moves, not even when arrays are loaded: a captured graph knows them by address.
    part: the name of the model among others, a prefix of its parameters' names in arrays.
    clipped_separately: a prefix of parameters; their gradients are clipped by their own norm, the others by
    theirs.
    """

    def __init__(
        self, model: nn.Module, epsilon: float, part: str = "", clipped_separately: str | None = None
    ) -> None:
        self._prefix = f"{part}." if part else ""
        self._step_name = f"step.{part}" if part else "step"
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        groups = [parameters]
        if clipped_separately is not None:
            others = {name: p for name, p in parameters.items() if not name.startswith(clipped_separately)}
            groups = [others, {name: p for name, p in parameters.items() if name not in others}]
        self._num_groups = len(groups)
        self._slices, self._size = _lay_out(groups)
        self.flat = nn.Parameter(self.flatten(model))
        self.grad = self.flat.grad = torch.zeros_like(self.flat)
        # The leaves that losses are differentiated by, each with its view of the gradient.
        self._leaves: dict[str, tuple[Tensor, Tensor]] = {
            name: (parameter, self.grad[self._slices[name]].view_as(parameter))
            for name, parameter in parameters.items()
        }
        self._one = torch.ones((), device=self.flat.device)
        self._epsilon = epsilon
        self._is_fused = self.flat.device.type != "mps"
        self._first, self._second = torch.zeros_like(self.flat.data), torch.zeros_like(self.flat.data)
        self._count = torch.zeros((), device=self.flat.device if self._is_fused else "cpu")

    @cached_property
    def _adam(self) -> torch.optim.Adam:
        """torch's optimizer, made for the first step: importing its compiler takes seconds."""
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
        """Every tensor that a step changes."""
        return self.flat.data, self._first, self._second, self._count

    def flatten(self, model: nn.Module) -> Tensor:
        """Make the parameters of this model, or of one like it, views of one flat tensor."""
        parameters = {name: p for name, p in model.named_parameters() if name in self._slices}
        flat = torch.zeros(self._size, device=next(iter(parameters.values())).device)
        for name, parameter in parameters.items():
            flat[self._slices[name]] = parameter.detach().reshape(-1)
            parameter.data = flat[self._slices[name]].view_as(parameter)
        return flat

    def stack(self, one: str, other: str) -> Tensor:
        """Two parameters of equal shape as one leaf [2, ...], which replaces them in `differentiate`."""
        shape, start = self._shapes[one], self._slices[one].start
        assert shape == self._shapes[other]
        strides = (self._slices[other].start - start, *torch.empty(shape, device="meta").stride())
        leaf, grad = (flat.as_strided((2, *shape), strides, start) for flat in (self.flat.data, self.grad))
        del self._leaves[one], self._leaves[other]
        self._leaves[f"{one}, {other}"] = leaf.requires_grad_(), grad
        return leaf

    def differentiate(self, loss: Tensor) -> None:
        """Write the gradient of a loss to `grad`."""
        leaves, grads = zip(*self._leaves.values(), strict=True)
        found = torch.autograd.grad(loss, leaves, self._one, materialize_grads=True)
        torch._foreach_copy_(grads, found)

    def clip(self, max_grad_norm: float | Tensor) -> Tensor:
        """Clip the gradient of each group; returns the norm of all before clipping, without leaving the
        device."""
        groups = self.grad.view(self._num_groups, -1)
        norms: Tensor = torch.linalg.vector_norm(groups, dim=1, keepdim=True)
        groups /= torch.fmax(norms / max_grad_norm, self._one)  # never NaN, so gaps stay 0
        norm: Tensor = norms.squeeze() if self._num_groups == 1 else torch.linalg.vector_norm(norms)
        return norm

    def step(self, learning_rate: float | Tensor, skip: Tensor | None = None) -> None:
        """One step, unless `skip`, a number on the device, is 1. Each replay of a graph reads a learning rate
        that is a tensor again."""
        adam = self._adam
        adam.param_groups[0]["lr"] = learning_rate
        if skip is not None and not self._is_fused:  # MPS: the host decides
            if not skip:
                adam.step()
            return
        adam.found_inf = skip  # type: ignore[attr-defined]  # mixed precision's switch: 1 skips the step
        adam.step()

    def arrays(self) -> dict[str, Array]:
        """Copies of the moments and of the step count, by name."""
        arrays = {f"mean.{name}": array for name, array in self.split(self._first).items()}
        arrays |= {f"square.{name}": array for name, array in self.split(self._second).items()}
        return arrays | {self._step_name: np.array(float(self._count), np.float32)}

    def load(self, arrays: dict[str, Array]) -> None:
        """Load moments and step count."""
        for moment, prefix in ((self._first, "mean"), (self._second, "square")):
            flat = np.zeros(len(moment), np.float32)
            for name, place in self._slices.items():
                flat[place] = arrays[f"{prefix}.{self._prefix}{name}"].ravel()
            moment.copy_(send(flat, moment.device))
        self._count.fill_(float(arrays[self._step_name]))

    def rescale(self, power_of: Callable[[str], int], factor: float) -> None:
        """Rescale the moments of gradients that grow by factor ** power_of(name)."""
        for name, place in self._slices.items():
            self._first[place] *= factor ** power_of(name)
            self._second[place] *= factor ** (2 * power_of(name))

    def gradient(self) -> dict[str, Array]:
        """Copies of the gradients by parameter."""
        return self.split(self.grad)

    def split(self, flat: Tensor) -> dict[str, Array]:
        """Copies of the parts of a flat tensor, by the names of the parameters."""
        array = fetch(flat.detach())
        return {
            self._prefix + name: array[place].reshape(self._shapes[name]).copy()
            for name, place in self._slices.items()
        }


def _lay_out(groups: Sequence[Mapping[str, nn.Parameter]]) -> tuple[dict[str, slice], int]:
    """The slice of every parameter in the flat tensor, and its length.

    Groups get equal shares of it, one after another, so that one call computes the norms of all. Kernels of
    accelerators load several numbers at once, and some fail at unaligned addresses. So each parameter starts
    at a multiple of 64 there. Gaps stay 0.
    """

    def measure(parameter: nn.Parameter) -> int:
        alignment = 1 if parameter.device.type == "cpu" else _ALIGNMENT
        return -(-parameter.numel() // alignment) * alignment

    share = max(sum(map(measure, group.values())) for group in groups)
    slices = {}
    for number, group in enumerate(groups):
        start = number * share
        for name, parameter in group.items():
            slices[name] = slice(start, start + parameter.numel())
            start += measure(parameter)
    return slices, share * len(groups)


class TorchNetwork:
    """The state of a torch kernel: networks on a device, and an Adam optimizer for each trained part.

    parts: trained networks by name. The name prefixes parameter names; it is empty for a single network.
    frozen: networks without an optimizer, such as target networks.
    is_acting: whether acting needs the parameter of this name; frozen ones never act.
    can_capture: whether gradient steps decide nothing on the host, which a graph would not repeat.
    clipped_separately: see `FlatAdam`.
    """

    def __init__(
        self,
        parts: Mapping[str, nn.Module],
        device: str,
        epsilon: float,
        *,
        frozen: Mapping[str, nn.Module] | None = None,
        is_acting: Callable[[str], bool] = lambda name: True,
        can_capture: bool,
        clipped_separately: str | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.adams = {
            part: FlatAdam(model.to(self.device), epsilon, part, clipped_separately)
            for part, model in parts.items()
        }
        self.notes: list[str] = []
        self.record: Recorder | None = None
        if can_capture and self.device.type == "cuda":
            self.record = partial(record_cuda, self.device)
        self._frozen = {
            part: model.to(self.device).requires_grad_(False) for part, model in (frozen or {}).items()
        }
        self._models = dict(parts) | self._frozen
        self._is_acting = is_acting
        self._captured: tuple[Hashable, Captured] | None = None

    @property
    def adam(self) -> FlatAdam:
        """The optimizer of the only part."""
        (adam,) = self.adams.values()
        return adam

    def _state(self) -> list[Tensor]:
        """Every tensor that gradient steps change."""
        state = [tensor for adam in self.adams.values() for tensor in adam.state]
        for part, model in self._models.items():
            state += model.buffers()
            if part in self._frozen:
                state += (parameter.data for parameter in model.parameters())
        return state

    def capture(
        self, key: Hashable, step: Callable[..., Tensor], inputs: Sequence[Tensor]
    ) -> Callable[..., Tensor]:
        """The step for inputs like these, captured if possible: once, until the key changes."""
        if self.record is None:
            return step
        if self._captured is None or self._captured[0] != key:
            self._captured = None  # frees its memory before the next one allocates
            try:
                self._captured = key, Captured(step, inputs, self._state(), self.record)
            except RuntimeError as error:  # border: drivers raise anything
                self.record = None
                cause = str(error).splitlines()[0]
                self.notes.append(f"gradient steps are not captured as a graph, and take longer: {cause}")
                return step
        return self._captured[1]

    def _acts(self, name: str) -> bool:
        return name.partition(".")[0] not in self._frozen and self._is_acting(name)

    def _fetch(self, wanted: Callable[[str], bool]) -> dict[str, Array]:
        """Copies of the wanted parameters and buffers by name; those of a trained part are one transfer."""
        arrays = {}
        for part, model in self._models.items():
            prefix = f"{part}." if part else ""
            tensors = {prefix + name: tensor for name, tensor in model.state_dict().items()}
            tensors = {name: tensor for name, tensor in tensors.items() if wanted(name)}
            trained = self.adams[part].split(self.adams[part].flat) if tensors and part in self.adams else {}
            for name, tensor in tensors.items():
                arrays[name] = trained[name] if name in trained else fetch(tensor).copy()
        return arrays

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters and buffers by name."""
        return self._fetch(lambda name: True)

    def acting(self) -> dict[str, Array]:
        return self._fetch(self._acts)

    def training(self) -> dict[str, Array]:
        return self._fetch(lambda name: not self._acts(name))

    def snapshot(self) -> list[Tensor]:
        """Clones of every tensor that gradient steps change, on the device."""
        return [tensor.clone() for tensor in self._state()]

    def restore(self, snapshot: list[Tensor]) -> None:
        for tensor, clone in zip(self._state(), snapshot, strict=True):
            tensor.copy_(clone)

    def snapshot_acting(self, snapshot: list[Tensor]) -> dict[str, Array]:
        now = self.snapshot()
        self.restore(snapshot)
        acting = self.acting()
        self.restore(now)
        return acting

    def load_parameters(self, arrays: dict[str, Array]) -> None:
        for part, model in self._models.items():
            prefix = f"{part}." if part else ""
            load_arrays(model, {name: arrays[prefix + name] for name in model.state_dict()})

    def optimizer(self) -> dict[str, Array]:
        return {name: array for adam in self.adams.values() for name, array in adam.arrays().items()}

    def load_optimizer(self, arrays: dict[str, Array]) -> None:
        for adam in self.adams.values():
            adam.load(arrays)


def record_cuda(device: torch.device, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Warm the step up on a GPU, then capture it; returns the function that replays it, and its output."""
    with torch.cuda.device(device):  # the thread may have another current device
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # An acting thread may use the device at the same time.
        with _no_garbage(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            output = step()
    return graph.replay, output


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Disable garbage collection: freeing a CUDA graph or event is forbidden during a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Captured:
    """`step(*inputs) -> output` for inputs of fixed shapes. The next call overwrites the output.

    The step takes tensors and returns one, decides nothing on the host, and keeps its state in tensors that
    never move. Warm-ups are real steps, so the tensors of `state` are restored afterwards, also if one fails.
    """

    def __init__(
        self,
        step: Callable[..., Tensor],
        inputs: Sequence[Tensor],
        state: Sequence[Tensor],
        record: Recorder,
    ) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        before = [tensor.clone() for tensor in state]
        try:
            self._replay, self._output = record(lambda: step(*self._inputs))
        finally:
            for tensor, kept in zip(state, before, strict=True):
                tensor.copy_(kept)

    def __call__(self, *inputs: Tensor) -> Tensor:
        for fixed, tensor in zip(self._inputs, inputs, strict=True):
            fixed.copy_(tensor)
        self._replay()
        return self._output
