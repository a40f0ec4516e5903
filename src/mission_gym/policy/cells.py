"""Recurrent cells in NumPy: the equations of one step, for acting. `torch_cells` has them for learning.

A cell has two linear layers, `memory.input` (W, b) of the features x and `memory.hidden` (U, c) of the memory
h. Their outputs are split into gates of H units, in torch's order. Memory is 0 when an episode begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mission_gym.data import Array, Leaves

Layer = tuple[Array, Array]  # weight [in, out], bias [out]


class Cell(NamedTuple):
    """A kind of cell. step: (W x + b [B, G], U h + c [B, G] or None, memory) -> memory, first of it h."""

    num_gates: int
    num_states: int  # arrays [B, H] of its memory
    reads_hidden: bool  # whether the gates read the memory
    step: Callable[[Array, Array | None, Leaves], Leaves]


def _sigmoid(x: Array) -> Array:
    half: Array = 0.5 * np.tanh(0.5 * x) + 0.5  # exp would overflow
    return half


def _step_gru(x: Array, h: Array | None, state: Leaves) -> Leaves:
    """r = s(x_r + h_r), z = s(x_z + h_z), n = tanh(x_n + r h_n), h' = n + z (h - n)."""
    assert h is not None
    size = len(state[0][0])
    gates = _sigmoid(x[:, : 2 * size] + h[:, : 2 * size])
    r, z = gates[:, :size], gates[:, size:]
    n = np.tanh(x[:, 2 * size :] + r * h[:, 2 * size :])
    return (n + z * (state[0] - n),)


def _step_lstm(x: Array, h: Array | None, state: Leaves) -> Leaves:
    """i, f, o = s(x + h), g = tanh(x_g + h_g), c' = f c + i g, h' = o tanh(c')."""
    i, f, g, o = np.split(x + h, 4, axis=1)
    c = _sigmoid(f) * state[1] + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(c), c


def _step_mingru(x: Array, h: Array | None, state: Leaves) -> Leaves:
    """z = s(x_z), h' = (1 - z) h + z x_n: a mean of past inputs, with weights that depend on the inputs."""
    z, n = np.split(x, 2, axis=1)
    z = _sigmoid(z)
    return ((1.0 - z) * state[0] + z * n,)


CELLS = {
    "gru": Cell(3, 1, True, _step_gru),
    "lstm": Cell(4, 2, True, _step_lstm),
    "mingru": Cell(2, 1, False, _step_mingru),
}


class NumpyMemory:
    """The memory of a policy: features [B, F] and memory -> memory."""

    def __init__(self, kind: str, layers: dict[str, Layer]) -> None:
        """layers: `input`, and `hidden` if the cell reads it."""
        self._step = CELLS[kind].step
        self._input, self._hidden = layers["input"], layers.get("hidden")

    def __call__(self, features: Array, state: Leaves) -> Leaves:
        weight, bias = self._input
        x = features @ weight + bias
        if self._hidden is None:
            return self._step(x, None, state)
        weight, bias = self._hidden
        return self._step(x, state[0] @ weight + bias, state)
