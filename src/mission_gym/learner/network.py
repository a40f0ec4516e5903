"""What kernels of every algorithm have: a network with Adam's moments, as arrays by name.

A checkpoint knows arrays by the torch form's names and shapes, whichever kernel wrote them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mission_gym.data import Array


class NetworkKernel(Protocol):
    """What a kernel keeps."""

    notes: list[str]  # what could not be done as planned on the device

    def parameters(self) -> dict[str, Array]:
        """Copies of the network's arrays by name."""

    def load_parameters(self, arrays: dict[str, Array]) -> None: ...

    def optimizer(self) -> dict[str, Array]:
        """Copies of the optimizer's arrays by name."""

    def load_optimizer(self, arrays: dict[str, Array]) -> None: ...

    def keep(self) -> Any:
        """The state of network and optimizer, to be put back if need be; it stays where they are."""

    def put_back(self, kept: Any) -> None: ...

    def kept_parameters(self, kept: Any) -> dict[str, Array]:
        """The network's arrays by name, as they were kept."""


class Views(Protocol):
    """A network whose arrays are views of one flat vector."""

    def named(self) -> dict[str, Array]:
        """The views under the torch form's names and shapes."""


def split_flat(shapes: Sequence[tuple[int, ...]], flat: Array | None = None) -> tuple[Array, list[Array]]:
    """A flat vector, new ones are 0, and its consecutive parts in these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    flat = np.zeros(int(ends[-1]), np.float32) if flat is None else flat
    parts = np.split(flat, ends[:-1])
    return flat, [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def copy_views(views: Views, prefix: str = "") -> dict[str, Array]:
    return {prefix + name: view.copy() for name, view in views.named().items()}


def fill_views(views: Views, arrays: dict[str, Array], prefix: str = "") -> None:
    for name, view in views.named().items():
        view[:] = arrays[prefix + name]


class CompiledNetwork:
    """The state of a compiled kernel: a network and Adam's moments, each views of a flat vector."""

    def __init__(self, net: Views, first: Views, second: Views, initial: dict[str, Array]) -> None:
        self._net, self._first, self._second = net, first, second
        self.num_steps = 0  # of Adam
        self.notes: list[str] = []
        self.load_parameters(initial)

    def parameters(self) -> dict[str, Array]:
        return copy_views(self._net)

    def load_parameters(self, arrays: dict[str, Array]) -> None:
        fill_views(self._net, arrays)

    def optimizer(self) -> dict[str, Array]:
        moments = copy_views(self._first, "mean.") | copy_views(self._second, "square.")
        return moments | {"step": np.array(self.num_steps, np.float32)}

    def load_optimizer(self, arrays: dict[str, Array]) -> None:
        fill_views(self._first, arrays, "mean.")
        fill_views(self._second, arrays, "square.")
        self.num_steps = int(arrays["step"])

    def keep(self) -> tuple[dict[str, Array], dict[str, Array]]:
        return self.parameters(), self.optimizer()

    def put_back(self, kept: tuple[dict[str, Array], dict[str, Array]]) -> None:
        self.load_parameters(kept[0])
        self.load_optimizer(kept[1])

    def kept_parameters(self, kept: tuple[dict[str, Array], dict[str, Array]]) -> dict[str, Array]:
        return kept[0]
