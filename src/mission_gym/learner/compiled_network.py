"""The state of compiled networks: parameters and Adam's moments in flat vectors.

Their views have the torch form's names and shapes, so a checkpoint fits every kernel. `mlp` computes with the
vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mission_gym.data import Array


class Layout:
    """The arrays of a network in one flat vector, weights as [in, out]; stacks of arrays are [C, ...]."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()]).tolist()
        self.starts = dict(zip(self.shapes, [0, *ends[:-1]], strict=True))
        self.size = int(ends[-1])

    def views(self, flat: Array) -> dict[str, Array]:
        """Views of a flat vector under the torch form's names and shapes: weights as [out, in], stacks as
        they are."""
        views = {}
        for (name, shape), start in zip(self.shapes.items(), self.starts.values(), strict=True):
            view = flat[start : start + math.prod(shape)].reshape(shape)
            views[name] = view.T if len(shape) == 2 else view
        return views


class CompiledNetwork:
    """The state of a compiled kernel: parameters and Adam's moments, each one flat vector.

    initial: its parameters; None for zeros, to be loaded.
    part: the name of the network among others, a prefix of its parameters' names.
    frozen: further vectors of the same layout by name, such as a target network.
    is_acting: whether acting needs the parameter of this name; frozen ones never act.
    """

    def __init__(
        self,
        layout: Layout,
        initial: Mapping[str, Array] | None,
        *,
        part: str = "",
        frozen: Sequence[str] = (),
        is_acting: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.flat, self.first, self.second = (np.zeros(layout.size, np.float32) for _ in range(3))
        self.frozen = {name: np.zeros(layout.size, np.float32) for name in frozen}
        self.num_steps = 0  # of Adam
        self.notes: list[str] = []
        self.layout, self._is_acting = layout, is_acting
        self._prefix, self._step_name = (f"{part}.", f"step.{part}") if part else ("", "step")
        if initial is not None:
            self._load(initial)
        for vector in self.frozen.values():
            vector[:] = self.flat

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters by name."""
        arrays = _copy(self.layout.views(self.flat), self._prefix)
        for part, vector in self.frozen.items():
            arrays |= _copy(self.layout.views(vector), f"{part}.")
        return arrays

    def _acts(self, name: str) -> bool:
        return name.partition(".")[0] not in self.frozen and self._is_acting(name)

    def acting(self) -> dict[str, Array]:
        return {name: array for name, array in self.parameters().items() if self._acts(name)}

    def training(self) -> dict[str, Array]:
        return {name: array for name, array in self.parameters().items() if not self._acts(name)}

    def load_parameters(self, arrays: dict[str, Array]) -> None:
        self._load(arrays)
        for part, vector in self.frozen.items():
            _fill(self.layout.views(vector), arrays, f"{part}.")

    def _load(self, arrays: Mapping[str, Array]) -> None:
        _fill(self.layout.views(self.flat), arrays, self._prefix)

    def optimizer(self) -> dict[str, Array]:
        views, prefix = self.layout.views, self._prefix
        moments = _copy(views(self.first), f"mean.{prefix}") | _copy(views(self.second), f"square.{prefix}")
        return moments | {self._step_name: np.array(self.num_steps, np.float32)}

    def load_optimizer(self, arrays: dict[str, Array]) -> None:
        _fill(self.layout.views(self.first), arrays, f"mean.{self._prefix}")
        _fill(self.layout.views(self.second), arrays, f"square.{self._prefix}")
        self.num_steps = int(arrays[self._step_name])

    def snapshot(self) -> tuple[list[Array], int]:
        return [vector.copy() for vector in self._vectors()], self.num_steps

    def restore(self, snapshot: tuple[list[Array], int]) -> None:
        for vector, copy in zip(self._vectors(), snapshot[0], strict=True):
            vector[:] = copy
        self.num_steps = snapshot[1]

    def snapshot_acting(self, snapshot: tuple[list[Array], int]) -> dict[str, Array]:
        arrays = _copy(self.layout.views(snapshot[0][0]), self._prefix)
        return {name: array for name, array in arrays.items() if self._is_acting(name)}

    def _vectors(self) -> list[Array]:
        return [self.flat, self.first, self.second, *self.frozen.values()]

    def gradient(self, grad: Array) -> dict[str, Array]:
        """Copies of a gradient's parts by name."""
        return _copy(self.layout.views(grad), self._prefix)

    def rescale(self, power_of: Callable[[str], int], factor: float) -> None:
        """Rescale the moments of gradients that grow by factor ** power_of(name); names without the part."""
        for vector, moment in ((self.first, 1), (self.second, 2)):
            for name, view in self.layout.views(vector).items():
                view *= factor ** (moment * power_of(name))


def _copy(views: dict[str, Array], prefix: str = "") -> dict[str, Array]:
    return {prefix + name: view.copy() for name, view in views.items()}


def _fill(views: dict[str, Array], arrays: Mapping[str, Array], prefix: str = "") -> None:
    for name, view in views.items():
        view[:] = arrays[prefix + name]
