"""Compiled MLPs: a tree of dense layers on flat vectors, with a hand-written backward pass.

A network is a table of layers, each fed by the inputs or by an earlier layer. So one forward and one backward
pass serve an actor next to a critic, and a shared body with several streams. Parameters and gradients are one
flat vector each; see `compiled_network`. BLAS multiplies the matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  numba multiplies with it; loaded before threads are capped

from mission_gym.compiled import matrix_kernel, name_sources
from mission_gym.data import Array
from mission_gym.learner import loops, ranks
from mission_gym.learner.compiled_network import Layout
from mission_gym.learner.loops import (
    ACTIVATIONS,
    RELU,
    TANH,
    activate_elu,
    activate_relu,
    activate_tanh,
    backward_elu,
    backward_normalize,
    backward_relu,
    backward_tanh,
    normalize_rows,
)

# Kinds of layers: followed by the activation; linear; linear with one output, by matrix-vector products;
# followed by layer normalization, then the activation.
HIDDEN, LINEAR, SCALAR, NORMALIZED = range(4)
# Columns of the table of layers. A source is an earlier layer, or -1 and -2 for the two inputs.
SOURCE, NUM_IN, NUM_OUT, WEIGHT, BIAS, KIND, COLUMN, ADDS = range(8)


class Dense(NamedTuple):
    """One layer of a tree."""

    name: str  # of its arrays: NAME.weight and NAME.bias
    source: int  # index of an earlier layer, -1 for the first input, -2 for the second
    num_in: int
    num_out: int
    kind: int = HIDDEN
    copy: int = 0  # which of the layers that share stacked arrays [C, ...]

    @property
    def width(self) -> int:
        """Numbers per row that a forward pass keeps: outputs; if normalized, also those before the
        activation, and their scale."""
        return 2 * self.num_out + 1 if self.kind == NORMALIZED else self.num_out


class Mlp(NamedTuple):
    """A tree of layers, for compiled code.

    layers: int64 [L, 8], columns as above. WEIGHT and BIAS are positions in the flat vector. COLUMN is the
    sum of the widths of earlier layers: outputs of R rows lie at COLUMN * R. ADDS: another layer writes the
    gradient of the source first, so this one adds to it.
    """

    layers: Array
    activation: int
    zeros: Array  # float32, of the widest layer
    sources: Array  # empty; its dtype names the source files, so that numba's disk cache notices changes


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
        starts = (
            layout.starts[f"{layer.name}.weight"] + layer.copy * layer.num_in * layer.num_out,
            layout.starts[f"{layer.name}.bias"] + layer.copy * layer.num_out,
        )
        adds = any(later.source == layer.source >= 0 for later in layers[index + 1 :])
        table.append((layer.source, layer.num_in, layer.num_out, *starts, layer.kind, column, adds))
        column += layer.width
    mark = name_sources(
        [*sources, *(Path(str(module.__file__)) for module in (loops, ranks)), Path(__file__)]
    )
    return Mlp(
        layers=np.array(table, np.int64),
        activation=list(ACTIVATIONS).index(activation),
        zeros=np.zeros(max(layer.num_out for layer in layers), np.float32),
        sources=np.empty(0, np.dtype([(mark, "i1")])),
    )


def total_width(layers: Sequence[Dense]) -> int:
    """Numbers per row of all layers."""
    return sum(layer.width for layer in layers)


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
def _read_normal(mlp: Mlp, layer: int, num_passed: int, num_rows: int, outputs: Array) -> tuple[Array, Array]:
    """The outputs of a layer's normalization [R, num_out] and their scale [R], as views."""
    num_out = mlp.layers[layer, NUM_OUT]
    start = (mlp.layers[layer, COLUMN] + num_out) * num_passed
    end = start + num_out * num_passed
    return matrix(outputs, start, num_rows, num_out), outputs[end : end + num_rows]


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
        elif kind == NORMALIZED:
            unit, scale = _read_normal(mlp, layer, num_rows, num_rows, outputs)
            normalize_rows(out, flat[bias : bias + num_out], unit, scale)
            _activate(mlp.activation, out, mlp.zeros[:num_out])
        else:
            for i in range(num_rows):
                for j in range(num_out):
                    out[i, j] += flat[bias + j]


@matrix_kernel
def _backward_hidden(
    mlp: Mlp, layer: int, num_passed: int, outputs: Array, d_out: Array, d_bias: Array
) -> None:
    """Through activation and normalization: d_out becomes the gradient of the layer's product, and d_bias its
    sums over rows."""
    num_rows = len(d_out)
    h = output(mlp, layer, num_passed, num_rows, outputs)
    _backward_activation(mlp.activation, d_out, h, d_bias)
    if mlp.layers[layer, KIND] == NORMALIZED:
        unit, scale = _read_normal(mlp, layer, num_passed, num_rows, outputs)
        backward_normalize(d_out, unit, scale, d_bias)


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
            if kind != LINEAR:
                _backward_hidden(mlp, layer, num_passed, outputs, d_out, grad[bias : bias + num_out])
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


@matrix_kernel
def backward_inputs(
    mlp: Mlp,
    flat: Array,
    first: int,
    num_rows: int,
    outputs: Array,
    d_outputs: Array,
    spare: Array,
    d_x: Array,
) -> None:
    """The gradient d_x [R, I] of the first input's columns from `first` on, without gradients of arrays.

    As `backward`: y = x W + b, so dx = dy W^T, summed over the layers that read x. No layer may be the source
    of two others. spare: R rows of d_x, and a row of
    the widest layer.
    """
    num_columns = d_x.shape[1]
    d_x[:] = 0.0
    for layer in range(len(mlp.layers) - 1, -1, -1):
        num_in, num_out, kind = mlp.layers[layer, NUM_IN], mlp.layers[layer, NUM_OUT], mlp.layers[layer, KIND]
        weight, parent = mlp.layers[layer, WEIGHT], mlp.layers[layer, SOURCE]
        d_out = matrix(d_outputs, mlp.layers[layer, COLUMN] * num_rows, num_rows, num_out)
        if kind in (HIDDEN, NORMALIZED):
            _backward_hidden(mlp, layer, num_rows, outputs, d_out, spare[:num_out])
        if parent >= 0:
            d_source = matrix(d_outputs, mlp.layers[parent, COLUMN] * num_rows, num_rows, num_in)
            if kind == SCALAR:
                for i in range(num_rows):
                    for j in range(num_in):
                        d_source[i, j] = d_out[i, 0] * flat[weight + j]
            else:
                np.dot(d_out, matrix(flat, weight, num_in, num_out).T, d_source)
        else:
            part = matrix(spare, 0, num_rows, num_columns)
            np.dot(d_out, matrix(flat, weight + first * num_out, num_columns, num_out).T, part)
            for i in range(num_rows):
                for j in range(num_columns):
                    d_x[i, j] += part[i, j]
