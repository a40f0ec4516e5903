"""A gradient step captured once and replayed: on CUDA one launch stands for all of its kernels.

The step takes tensors and returns one, decides nothing on the host, and keeps its state in tensors that
never move. How it is recorded is a parameter, so that all the rest runs without a GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
_REHEARSALS = 3  # libraries choose algorithms and allocate workspaces in the first calls


def record_cuda(device: torch.device, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Rehearse the step on a card, then capture it; returns what replays it, and its output."""
    with torch.cuda.device(device):  # of the thread, which may have another one
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_REHEARSALS):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # An acting thread may use the device meanwhile.
        with _no_garbage(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            output = step()
    return graph.replay, output


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Collect none within: to free a graph or an event of CUDA's is forbidden during a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Captured:
    """`step(*inputs) -> output` for inputs of fixed shapes. The output is overwritten by the next call.

    Rehearsals are real steps, so the tensors of `state` are put back behind them, also if one fails.
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
