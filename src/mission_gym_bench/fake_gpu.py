"""A fake GPU on a CPU build of torch: real numbers, strict about devices, waits and graph capture.

with pretend("cuda") as device:
...  # torch.cuda.is_available() is True, and .to("cuda") works
device.counts["waits"]

A tensor "on" it is a subclass with CPU storage whose `device` is cuda:0 or mps:0. Every operation checks that
its tensors are on one device; mps refuses float64. With `index=1` it is the second GPU, and operations on the
first are refused. A graph records its operations and replays them in place. Operations that compute something
count as kernels, views and empty memory do not. Not simulated: races, real memory, bf16, kernel choice,
speed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map

_COPIES = {"aten::copy_", "aten::_foreach_copy_"}
_WAITING = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::is_nonzero",
}
_FREE = {"aten::_unsafe_view", "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}
_CREATES = {"empty", "zeros", "ones", "full", "tensor", "arange"}


@dataclass
class FakeDevice:
    """The device of a `pretend` block."""

    kind: str  # cuda or mps
    index: int = 0  # of the GPU that is used
    name: str = "Fake GPU"
    capability: tuple[int, int] = (8, 0)
    free_bytes: int = 8 << 30
    largest_bytes: int = 1 << 40  # larger tensors are out of memory
    peak_bytes: int = 0  # the result of max_memory_allocated
    fails_to_capture: bool = False
    is_lost: bool = False  # every operation fails
    counts: Counter[str] = field(default_factory=Counter)  # waits, uploads, replays, kernels
    kernels: Counter[str] = field(default_factory=Counter)  # by name, without replays
    tape: list[tuple[Any, ...]] | None = None  # of the current capture
    graphs: WeakSet[_Graph] = field(default_factory=WeakSet)  # alive

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.kind, self.index)

    def is_meant(self, device: Any) -> bool:
        """Whether `device` names this device for torch; RuntimeError for another GPU."""
        asked = torch.device(self.kind if device is None else device)
        if asked.type != self.kind:
            return False
        index = getattr(_thread, "gpu", 0) if asked.index is None else asked.index
        if index != self.index:
            raise RuntimeError(f"GPU {index} is used instead of {self.torch_device}")
        return True

    @property
    def kernels_of_graph(self) -> int:
        """The number of kernels that a replay of the only graph launches."""
        (graph,) = self.graphs
        return sum(_is_kernel(func) for func, *_ in graph.tape)

    def count_wait(self, what: str) -> None:
        """Count a wait of the host for the device, which a capture forbids."""
        self.counts["waits"] += 1
        if self.tape is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    def take(self, tensor: Any) -> None:
        """Refuse a tensor that the device has no memory or no dtype for."""
        if not isinstance(tensor, torch.Tensor):
            return
        if tensor.nbytes > self.largest_bytes:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {tensor.nbytes / (1 << 20):.2f} MiB. GPU 0 has a"
                " total capacity of 8.00 GiB of which 8.00 GiB is free."
            )
        if self.kind == "mps" and tensor.dtype == torch.float64:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support it"
            )


_device = FakeDevice("cpu")  # the current fake device
_thread = threading.local()  # `gpu`: the current index, as `torch.cuda.device` sets it


def _is_kernel(func: Any) -> bool:
    """Whether an operation computes something; one that returns a view of an argument does not."""
    if func._schema.name in _FREE:
        return False
    return not any(each.alias_info and not each.alias_info.is_write for each in func._schema.returns)


class DeviceTensor(torch.Tensor):
    """A tensor on the fake device."""

    device = property(lambda self: _device.torch_device)
    is_cuda = property(lambda self: _device.kind == "cuda")
    is_cpu = property(lambda self: False)

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {_device.kind} device type tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, func._schema.name
        if _device.is_lost:
            raise RuntimeError("CUDA error: unspecified launch failure")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_host = [tensor for tensor in given if not isinstance(tensor, DeviceTensor)]
        to_host = name in _COPIES and not isinstance(tree_leaves(args[0])[0], DeviceTensor)
        if name in _COPIES and on_host:
            if not (kwargs.get("non_blocking") or args[2:3] == (True,)):
                _device.count_wait(name)
            _device.counts["uploads"] += not to_host
        elif any(tensor.dim() for tensor in on_host):
            raise RuntimeError(
                f"{name}: Expected all tensors to be on the same device, but found at least two devices,"
                f" {_device.torch_device} and cpu!"
            )
        if name in _WAITING:
            _device.count_wait(name)
        if _is_kernel(func):
            _device.counts["kernels"] += 1
            _device.kernels[name] += 1
        with no_dispatch():
            out = func(*args, **kwargs)
        if to_host:
            return out
        if not any(each.alias_info for each in func._schema.returns):  # otherwise the memory exists already
            for tensor in tree_leaves(out):
                _device.take(tensor)
        out = tree_map(_to_device, out)
        if _device.tape is not None:
            _device.tape.append((func, args, kwargs, out))
        return out


def _to_device(value: Any, requires_grad: bool = False) -> Any:
    """Return the same memory as a tensor on the device; other values are returned as they are."""
    if isinstance(value, DeviceTensor) or not isinstance(value, torch.Tensor):
        return value
    return torch.Tensor._make_subclass(DeviceTensor, value, requires_grad)


def _upload(tensor: torch.Tensor, waits: bool) -> Any:
    if waits:
        _device.count_wait("a copy to the device")
    _device.counts["uploads"] += 1
    _device.take(tensor)
    return _to_device(tensor.detach().clone())


def _download(tensor: torch.Tensor) -> torch.Tensor:
    _device.count_wait("a copy to the host")
    with no_dispatch():
        return tensor.detach().as_subclass(torch.Tensor).clone()


class _Placement(TorchFunctionMode):
    """Makes `device=` and `.to` refer to the fake device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in ("cpu", "tolist") and isinstance(args[0], DeviceTensor):
            host = _download(args[0])
            return host if name == "cpu" else host.tolist()
        if name == "to" and isinstance(args[0], torch.Tensor):
            devices = [
                a for a in (*args[1:], kwargs.pop("device", None)) if isinstance(a, str | torch.device)
            ]
            rest = [a for a in args[1:] if isinstance(a, torch.dtype)]
            tensor = args[0]
            if devices and _is_here(devices[0]) and not isinstance(tensor, DeviceTensor):
                tensor = _upload(tensor, waits=not kwargs.get("non_blocking"))
            elif devices and not _is_here(devices[0]) and isinstance(tensor, DeviceTensor):
                tensor = _download(tensor)
            kwargs.pop("non_blocking", None)
            return func(tensor, *rest, **kwargs) if rest or kwargs else tensor
        if name == "pin_memory":
            return args[0]
        if name == "empty":
            kwargs.pop("pin_memory", None)
        if name in _CREATES and _is_here(kwargs.get("device")):
            del kwargs["device"]
            made = func(*args, **kwargs)
            _device.take(made)
            return _to_device(made, made.requires_grad)
        return func(*args, **kwargs)


def _is_here(device: Any) -> bool:
    return device is not None and _device.is_meant(device)


class _Stream:
    def __init__(self, device: Any = None, **kwargs: Any) -> None:
        _device.is_meant(device)

    def wait_stream(self, other: Any) -> None: ...

    def is_capturing(self) -> bool:
        return _device.tape is not None


class _Event:
    def __init__(self, **kwargs: Any) -> None: ...

    def record(self, stream: Any = None) -> None:
        if stream is None:
            _Stream()  # the current one of the current GPU

    def synchronize(self) -> None:
        _device.count_wait("an event")


class _Graph:
    tape: list[tuple[Any, ...]]

    def __init__(self) -> None:
        _device.graphs.add(self)

    def replay(self) -> None:
        _device.counts["replays"] += 1
        with torch.no_grad(), no_dispatch():
            for func, args, kwargs, out in self.tape:
                for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@contextmanager
def _capture(graph: _Graph, **kwargs: Any) -> Iterator[None]:
    if _device.fails_to_capture:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    _device.tape = graph.tape = []
    try:
        yield
    finally:
        _device.tape = None


@contextmanager
def _current_gpu(device: Any) -> Iterator[None]:
    before = getattr(_thread, "gpu", 0)
    _thread.gpu = torch.device(device).index or 0
    try:
        yield
    finally:
        _thread.gpu = before


def _stream_context(stream: Any) -> Any:
    """As torch.cuda.stream, which without a stream uses the current accelerator and fails on MPS."""
    if stream is None and _device.kind == "mps":
        raise AttributeError("module 'torch.mps' has no attribute 'current_device'")
    return nullcontext()


def _list_patches(device: FakeDevice) -> Iterator[Any]:
    """Yield the patches of torch."""
    major, minor = device.capability
    properties = SimpleNamespace(name=device.name, uuid="0", major=major, minor=minor, total_memory=8 << 30)

    def answer(read: Callable[[], Any]) -> Callable[..., Any]:
        """Return a function that takes a device and checks it."""

        def checked(of: Any = None) -> Any:
            device.is_meant(of)
            return read()

        return checked

    if device.kind == "cuda":
        mocks: dict[str, Any] = {
            "is_available": lambda: True,
            "device_count": lambda: 1 + device.index,
            "device": _current_gpu,
            "get_device_name": answer(lambda: device.name),
            "get_device_capability": lambda *args: device.capability,  # of every GPU
            "get_device_properties": answer(lambda: properties),
            "mem_get_info": answer(lambda: (device.free_bytes, 8 << 30)),
            "max_memory_allocated": answer(lambda: device.peak_bytes),
            "memory_reserved": answer(lambda: 0),
            "memory_allocated": answer(lambda: 0),
            "reset_peak_memory_stats": answer(lambda: None),
            "synchronize": answer(lambda: device.count_wait("all streams")),
            "Stream": _Stream,
            "Event": _Event,
            "CUDAGraph": _Graph,
            "graph": _capture,
            "current_stream": _Stream,
        }
        yield patch.multiple(torch.cuda, create=True, **mocks)
        # Optimizers check here whether a step is captured.
        yield patch("torch.accelerator.current_accelerator", lambda **kwargs: torch.device("cuda"))
        yield patch("torch.accelerator.current_stream", lambda *args: _Stream(device.torch_device))
        yield patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    else:
        yield patch("torch.backends.mps.is_available", lambda: True)
        yield patch("torch.mps.driver_allocated_memory", lambda: 0)
    yield patch("torch.cuda.stream", _stream_context)

    def group(lists: Any, with_indices: bool = False) -> Any:  # torch's own is C++ and sees the CPU
        return {(device.torch_device, torch.float32): (lists, list(range(len(lists[0]))))}

    yield patch.object(torch.optim.Optimizer, "_group_tensors_by_device_and_dtype", staticmethod(group))
    run: Callable[[threading.Thread], None] = threading.Thread.run

    def run_here(thread: threading.Thread) -> None:  # modes belong to a thread
        with _Placement():
            run(thread)

    yield patch.object(threading.Thread, "run", run_here)


@contextmanager
def pretend(kind: str, **facts: Any) -> Iterator[FakeDevice]:
    """Give this process a fake device of a kind, cuda or mps; `facts` are fields of `FakeDevice`."""
    global _device
    before, _device = _device, FakeDevice(kind, **facts)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with ExitStack() as stack:
            for each in _list_patches(_device):
                stack.enter_context(each)
            stack.enter_context(_Placement())
            yield _device
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        _device = before
