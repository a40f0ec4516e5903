"""What the compiled kernel of DQN computes with: the views of a flat vector of parameters, and kept arrays.

The named tuples are what compiled code takes.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mission_gym.compiled import name_sources
from mission_gym.data import Array
from mission_gym.learner import loops, products
from mission_gym.learner.loops import ACTIVATIONS
from mission_gym.learner.network import split_flat
from mission_gym.policy import PolicySpec
from mission_gym.policy.q_numpy import stream_names

# Of what is compiled, with the loops.
_SOURCES = ("compiled_steps", "passes", "network", "kernel")
_FILES = [Path(__file__).with_name(f"{name}.py") for name in _SOURCES]
_ROWS_AHEAD = 256  # that the target network passes at once; of more, hidden outputs leave the cache
_MARK = np.dtype([(name_sources([*_FILES, Path(loops.__file__), Path(products.__file__)]), "i1")])


class Net:
    """Views of one flat vector: the shared layers, then a hidden layer and a head for each stream."""

    def __init__(self, spec: PolicySpec, num_flat: int) -> None:
        *body, width = (num_flat, *spec.network_arch)
        names = [f"body.{2 * i}" for i in range(len(body) - 1)]
        sizes = [*pairwise(body)]
        for stream in stream_names(spec):
            num_out = 1 if stream == "value" else spec.action.num_params
            names += [f"{stream}.0", f"{stream}.2"]
            sizes += [(body[-1], width), (width, num_out)]
        shapes = [shape for num_in, num_out in sizes for shape in ((num_in, num_out), (num_out,))]
        self.flat, views = split_flat(shapes)
        self._named: dict[str, Array] = {}
        for name, weight, bias in zip(names, views[::2], views[1::2], strict=True):
            self._named |= {f"{name}.weight": weight.T, f"{name}.bias": bias}

    def named(self) -> dict[str, Array]:
        """Views under the torch form's names and shapes, so that checkpoints know no kernel."""
        return self._named


class Shape(NamedTuple):
    """What a network is, for compiled code."""

    body: Array  # int64: inputs, then the width of each shared layer
    width: int  # of the hidden layer of a stream
    num_actions: int
    num_streams: int
    activation: int
    sources: Array  # empty; its type tells numba's cache which code it was compiled from


def make_shape(spec: PolicySpec, num_flat: int) -> Shape:
    return Shape(
        body=np.array([num_flat, *spec.network_arch[:-1]], np.int64),
        width=spec.network_arch[-1],
        num_actions=spec.action.num_params,
        num_streams=len(stream_names(spec)),
        activation=list(ACTIVATIONS).index(spec.activation),
        sources=np.empty(0, _MARK),
    )


class Transitions(NamedTuple):
    """Those of some gradient steps, [N, ...]."""

    flat: Array  # float32 [N, F]
    next_flat: Array
    action: Array  # int64 [N]
    reward: Array  # float32 [N]
    discount: Array
    next_mask: Array  # bool [N, A], or empty
    weight: Array  # float32 [N], or empty


class Scratch(NamedTuple):
    """The arrays of a gradient step, kept: to ask the system for pages again would take as long as the
    products. B is the batch, R are the rows of a pass of the network that learns: 2 B where both ends of a
    transition are judged; the target network passes those of several steps, M."""

    x: Array  # float32 [R, F]
    hidden: Array  # float32, flat: [R, H] of each layer, or [M, H]
    d_hidden: Array  # of B rows
    d_below: Array  # float32, flat: what a second stream adds to the layer below it
    q: Array  # float32 [R, A]
    state_value: Array  # float32 [R, 1] or [M, 1], of a dueling network
    next_values: Array  # float32 [M, A], of the target network
    d_q: Array  # float32 [B, A]
    d_value: Array  # float32 [B, 1]


def make_scratch(spec: PolicySpec, num_flat: int, batch_size: int, double: bool) -> Scratch:
    def real(*shape: int) -> Array:
        return np.empty(shape, np.float32)

    rows, num_actions = batch_size * (1 + double), spec.action.num_params
    ahead = batch_size * max(1, _ROWS_AHEAD // batch_size)
    most = max(rows, ahead)
    *body, width = spec.network_arch
    widths = sum(body) + width * len(stream_names(spec))
    return Scratch(
        x=real(rows, num_flat),
        hidden=real(most * widths),
        d_hidden=real(batch_size * widths),
        d_below=real(batch_size * (body[-1] if body else 0)),
        q=real(rows, num_actions),
        state_value=real(most, 1),
        next_values=real(ahead, num_actions),
        d_q=real(batch_size, num_actions),
        d_value=real(batch_size, 1),
    )
