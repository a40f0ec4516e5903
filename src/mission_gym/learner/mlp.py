"""Compiled MLPs: a tree of dense layers on flat vectors, with a hand-written backward pass.

A network is a table of layers, each fed by the inputs or by an earlier layer. So one forward and one backward
pass serve an actor next to a critic, and a shared body with several streams. Parameters and gradients are one
flat vector each; `Layout` gives its views the torch form's names and shapes. BLAS multiplies the matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  numba multiplies with it; loaded before threads are capped

from mission_gym.compiled import matrix_kernel, name_sources
from mission_gym.data import Array
from mission_gym.learner import loops
from mission_gym.learner.loops import (
    ACTIVATIONS,
    RELU,
    TANH,
    activate_elu,
    activate_relu,
    activate_tanh,
    backward_elu,
    backward_relu,
    backward_tanh,
)

# Kinds of layers: followed by the activation; linear; linear with one output, by matrix-vector products.
HIDDEN, LINEAR, SCALAR = range(3)
# Columns of the table of layers. A source is an earlier layer, or -1 and -2 for the two inputs.
SOURCE, NUM_IN, NUM_OUT, WEIGHT, BIAS, KIND, COLUMN, ADDS = range(8)


class Dense(NamedTuple):
    """One layer of a tree."""

    name: str  # of its arrays: NAME.weight and NAME.bias
    source: int  # index of an earlier layer, -1 for the first input, -2 for the second
    num_in: int
    num_out: int
    kind: int = HIDDEN


class Mlp(NamedTuple):
    """A tree of layers, for compiled code.

    layers: int64 [L, 8], columns as above. WEIGHT and BIAS are positions in the flat vector. COLUMN is the
    sum of
    the widths of earlier layers: outputs of R rows lie at COLUMN * R. ADDS: another layer writes the gradient
    of the source first, so this one adds to it.
    """

    layers: Array
    activation: int
    sources: Array  # empty; its dtype names the source files, so that numba's disk cache notices changes


class Layout:
    """The arrays of a network in one flat vector, weights as [in, out]."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()]).tolist()
        self.starts = dict(zip(self.shapes, [0, *ends[:-1]], strict=True))
        self.size = int(ends[-1])

    def views(self, flat: Array) -> dict[str, Array]:
        """Views of a flat vector under the torch form's names and shapes, weights as [out, in]."""
        return {
            name: flat[start : start + math.prod(shape)].reshape(shape).T
            for (name, shape), start in zip(self.shapes.items(), self.starts.values(), strict=True)
        }


def layer_shapes(layers: Sequence[Dense]) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's arrays, layer by layer."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in layers:
        shapes |= {
            f"{layer.name}.weight": (layer.num_in, layer.num_out),
            f"{layer.name}.bias": (layer.num_out,),
        }
    return shapes


def make_mlp(layers: Sequence[Dense], layout: Layout, activation: str, sources: Sequence[Path]) -> Mlp:
    """The table of a tree. sources: the files of the compiled code that uses it, besides this one."""
    table, column = [], 0
    for index, layer in enumerate(layers):
        starts = (layout.starts[f"{layer.name}.weight"], layout.starts[f"{layer.name}.bias"])
        adds = any(later.source == layer.source >= 0 for later in layers[index + 1 :])
        table.append((layer.source, layer.num_in, layer.num_out, *starts, layer.kind, column, adds))
        column += layer.num_out
    mark = name_sources([*sources, Path(__file__), Path(loops.__file__)])
    return Mlp(
        layers=np.array(table, np.int64),
        activation=list(ACTIVATIONS).index(activation),
        sources=np.empty(0, np.dtype([(mark, "i1")])),
    )


def total_width(layers: Sequence[Dense]) -> int:
    """Outputs of all layers for one row."""
    return sum(layer.num_out for layer in layers)


class CompiledNetwork:
    """The state of a compiled kernel: parameters and Adam's moments, each one flat vector.

    frozen: further vectors of the same layout by name, such as a target network.
    is_acting: whether acting needs the parameter of this name; frozen ones never act.
    """

    def __init__(
        self,
        layout: Layout,
        initial: dict[str, Array],
        *,
        frozen: Sequence[str] = (),
        is_acting: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.flat, self.first, self.second = (np.zeros(layout.size, np.float32) for _ in range(3))
        self.frozen = {name: np.zeros(layout.size, np.float32) for name in frozen}
        self.num_steps = 0  # of Adam
        self.notes: list[str] = []
        self._layout, self._is_acting = layout, is_acting
        self._load(initial)
        for vector in self.frozen.values():
            vector[:] = self.flat

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters by name."""
        arrays = _copy(self._layout.views(self.flat))
        for part, vector in self.frozen.items():
            arrays |= _copy(self._layout.views(vector), f"{part}.")
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
            _fill(self._layout.views(vector), arrays, f"{part}.")

    def _load(self, arrays: dict[str, Array]) -> None:
        _fill(self._layout.views(self.flat), arrays)

    def optimizer(self) -> dict[str, Array]:
        views = self._layout.views
        moments = _copy(views(self.first), "mean.") | _copy(views(self.second), "square.")
        return moments | {"step": np.array(self.num_steps, np.float32)}

    def load_optimizer(self, arrays: dict[str, Array]) -> None:
        _fill(self._layout.views(self.first), arrays, "mean.")
        _fill(self._layout.views(self.second), arrays, "square.")
        self.num_steps = int(arrays["step"])

    def snapshot(self) -> tuple[list[Array], int]:
        return [vector.copy() for vector in self._vectors()], self.num_steps

    def restore(self, snapshot: tuple[list[Array], int]) -> None:
        for vector, copy in zip(self._vectors(), snapshot[0], strict=True):
            vector[:] = copy
        self.num_steps = snapshot[1]

    def snapshot_acting(self, snapshot: tuple[list[Array], int]) -> dict[str, Array]:
        views = self._layout.views(snapshot[0][0])
        return {name: view.copy() for name, view in views.items() if self._is_acting(name)}

    def _vectors(self) -> list[Array]:
        return [self.flat, self.first, self.second, *self.frozen.values()]

    def gradient(self, grad: Array) -> dict[str, Array]:
        """Copies of a gradient's parts by name."""
        return _copy(self._layout.views(grad))


def _copy(views: dict[str, Array], prefix: str = "") -> dict[str, Array]:
    return {prefix + name: view.copy() for name, view in views.items()}


def _fill(views: dict[str, Array], arrays: dict[str, Array], prefix: str = "") -> None:
    for name, view in views.items():
        view[:] = arrays[prefix + name]


@matrix_kernel
def _activate(activation: int, x: Array, bias: Array) -> None:
    """x = f(x + bias), in place; x [R, H], bias [H]."""
    if activation == TANH:
        activate_tanh(x, bias)
    elif activation == RELU:
        activate_relu(x, bias)
    else:
        activate_elu(x, bias)


@matrix_kernel
def _backward_activation(activation: int, d: Array, h: Array, d_bias: Array) -> None:
    """d *= f'(z), from the output h = f(z), and d_bias = its sums over rows; d and h [R, H]."""
    if activation == TANH:
        backward_tanh(d, h, d_bias)
    elif activation == RELU:
        backward_relu(d, h, d_bias)
    else:
        backward_elu(d, h, d_bias)


@matrix_kernel
def matrix(flat: Array, start: int, num_rows: int, num_columns: int) -> Array:
    """A matrix as a view of a flat vector from `start` on."""
    return flat[start : start + num_rows * num_columns].reshape((num_rows, num_columns))


@matrix_kernel
def output(mlp: Mlp, layer: int, num_passed: int, num_rows: int, outputs: Array) -> Array:
    """The outputs [R, num_out] of a layer, as a view: the first R of the rows that were passed forward."""
    start = mlp.layers[layer, COLUMN] * num_passed
    return matrix(outputs, start, num_rows, mlp.layers[layer, NUM_OUT])


@matrix_kernel
def _read_source(mlp: Mlp, layer: int, x0: Array, x1: Array, num_passed: int, outputs: Array) -> Array:
    """The inputs [R, num_in] of a layer, R = len(x0): the network's inputs, or the outputs of its source."""
    source = mlp.layers[layer, SOURCE]
    if source == -1:
        return x0
    if source == -2:
        return x1
    return output(mlp, source, num_passed, len(x0), outputs)


@matrix_kernel
def forward(mlp: Mlp, flat: Array, x0: Array, x1: Array, outputs: Array) -> None:
    """h = f(h_source W + b) for every layer, into `outputs`. x0, x1: the two inputs [R, ...]."""
    num_rows = len(x0)
    for layer in range(len(mlp.layers)):
        num_in, num_out, kind = mlp.layers[layer, NUM_IN], mlp.layers[layer, NUM_OUT], mlp.layers[layer, KIND]
        weight, bias = mlp.layers[layer, WEIGHT], mlp.layers[layer, BIAS]
        source = _read_source(mlp, layer, x0, x1, num_rows, outputs)
        start = mlp.layers[layer, COLUMN] * num_rows
        if kind == SCALAR:
            vector = outputs[start : start + num_rows]
            np.dot(source, flat[weight : weight + num_in], vector)
            vector += flat[bias]
            continue
        out = matrix(outputs, start, num_rows, num_out)
        np.dot(source, matrix(flat, weight, num_in, num_out), out)
        if kind == HIDDEN:
            _activate(mlp.activation, out, flat[bias : bias + num_out])
        else:
            for i in range(num_rows):
                for j in range(num_out):
                    out[i, j] += flat[bias + j]


@matrix_kernel
def backward(
    mlp: Mlp,
    flat: Array,
    grad: Array,
    x0: Array,
    x1: Array,
    num_passed: int,
    outputs: Array,
    d_outputs: Array,
    spare: Array,
) -> None:
    """The gradient of every array, from the top layer down. The caller has filled `d_outputs` of the heads.

    y = h W + b, so dW = h^T dy, db = sum dy, dh = dy W^T; below an activation, dz = dh f'(z) replaces dy.
    Gradients are written, not added, so nothing needs to be zeroed first. They are those of the first R =
    len(x0) of the `num_passed` rows of the forward pass. `d_outputs` holds R rows of every layer, `spare` R
    rows of the widest source.
    """
    num_rows = len(x0)
    for layer in range(len(mlp.layers) - 1, -1, -1):
        num_in, num_out, kind = mlp.layers[layer, NUM_IN], mlp.layers[layer, NUM_OUT], mlp.layers[layer, KIND]
        weight, bias = mlp.layers[layer, WEIGHT], mlp.layers[layer, BIAS]
        source = _read_source(mlp, layer, x0, x1, num_passed, outputs)
        start = mlp.layers[layer, COLUMN] * num_rows
        parent, adds = mlp.layers[layer, SOURCE], mlp.layers[layer, ADDS]
        below = mlp.layers[parent, COLUMN] * num_rows if parent >= 0 else 0
        d_source = spare if adds else d_outputs[below:]
        if kind == SCALAR:
            vector, total = d_outputs[start : start + num_rows], 0.0
            np.dot(source.T, vector, grad[weight : weight + num_in])
            for i in range(num_rows):
                total += vector[i]
                if parent >= 0:
                    for j in range(num_in):
                        d_source[i * num_in + j] = vector[i] * flat[weight + j]
            grad[bias] = total
        else:
            d_out = matrix(d_outputs, start, num_rows, num_out)
            if kind == HIDDEN:
                h = output(mlp, layer, num_passed, num_rows, outputs)
                _backward_activation(mlp.activation, d_out, h, grad[bias : bias + num_out])
            else:
                grad[bias : bias + num_out] = 0.0
                for i in range(num_rows):
                    for j in range(num_out):
                        grad[bias + j] += d_out[i, j]
            np.dot(source.T, d_out, matrix(grad, weight, num_in, num_out))
            if parent >= 0:
                np.dot(d_out, matrix(flat, weight, num_in, num_out).T, matrix(d_source, 0, num_rows, num_in))
        if adds:
            for i in range(num_rows * num_in):
                d_outputs[below + i] += spare[i]
