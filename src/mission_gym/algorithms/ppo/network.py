"""What the compiled kernel computes with: the views of a flat vector of parameters, and kept arrays.

The named tuples are what compiled code takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from mission_gym.compiled import name_sources
from mission_gym.data import Array
from mission_gym.learner import loops, products
from mission_gym.learner.loops import ACTIVATIONS
from mission_gym.learner.network import split_flat
from mission_gym.policy import PolicySpec

# Of what is compiled, with the loops.
_SOURCES = ("compiled_steps", "passes", "heads", "compiled_loss", "network")
_FILES = [Path(__file__).with_name(f"{name}.py") for name in _SOURCES]
_MARK = np.dtype([(name_sources([*_FILES, Path(loops.__file__), Path(products.__file__)]), "i1")])


class Net:
    """Views of one flat vector: the hidden layers of actor and critic, side by side, and their heads."""

    def __init__(self, spec: PolicySpec, flat: Array | None = None) -> None:
        shapes = _shape_arrays(spec)
        self.flat, views = split_flat(list(shapes.values()), flat)
        self._views = dict(zip(shapes, views, strict=True))

    def named(self) -> dict[str, Array]:
        """Views under the torch form's names and shapes, so that checkpoints know no kernel."""
        in_turn = sorted(self._views, key=lambda name: name.partition(".")[0])  # actor, critic, log_std
        return {name: self._views[name].T for name in in_turn}


def _shape_arrays(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """The arrays in their order in the vector, weights as [in, out]; the critic may see more."""
    shapes: dict[str, tuple[int, ...]] = {}
    inputs, layer = {"actor": spec.seen.num_flat, "critic": spec.num_flat}, 0
    for width in spec.network_arch:
        shapes |= {f"{name}.{layer}.weight": (num_in, width) for name, num_in in inputs.items()}
        shapes |= {f"{name}.{layer}.bias": (width,) for name in inputs}
        inputs, layer = dict.fromkeys(inputs, width), layer + 2
    for name, num_out in (("actor", spec.action.num_params), ("critic", 1)):
        shapes |= {f"{name}.{layer}.weight": (inputs[name], num_out), f"{name}.{layer}.bias": (num_out,)}
    return shapes | ({"log_std": (spec.action.num_reals,)} if spec.action.num_reals else {})


class Shape(NamedTuple):
    """What a network is, for compiled code."""

    sizes: Array  # int64: inputs of the critic, then the width of each hidden layer
    num_seen: int  # inputs of the actor, the first of the critic's
    edges: Array  # int64: columns of the parts of categorical logits
    num_params: int  # outputs of the actor: these logits, those of bits, then means of real numbers
    num_reals: int
    activation: int
    sources: Array  # empty; its type tells numba's cache which code it was compiled from


def make_shape(spec: PolicySpec) -> Shape:
    return Shape(
        sizes=np.array([spec.num_flat, *spec.network_arch], np.int64),
        num_seen=spec.seen.num_flat,
        edges=np.cumsum([0, *spec.action.nvec]).astype(np.int64),
        num_params=spec.action.num_params,
        num_reals=spec.action.num_reals,
        activation=list(ACTIVATIONS).index(spec.activation),
        sources=np.empty(0, _MARK),
    )


class Batch(NamedTuple):
    """Transitions: all of a block, or the rows of a minibatch that one rank learns from."""

    flat: Array  # float32 [B, F]
    action: Array  # float32 [B, K]
    mask: Array  # bool [B, M], or empty
    weight: Array  # float32 [B]; those of a whole minibatch sum to 1
    log_prob: Array  # float32 [B], of the policy before this update
    advantage: Array  # float32 [B]; in a minibatch normalised, and times the importance
    returns: Array  # float32 [B]


class Scratch(NamedTuple):
    """The arrays of a rank, kept: to ask the system for pages again would take as long as the products."""

    batch: Batch
    seen: Array  # float32 [B, A]: what the actor sees of the rows; the rows themselves where that is all
    hidden: Array  # float32, flat: [2, B, H] of each layer
    d_hidden: Array
    params: Array  # float32 [B, P]
    p: Array
    log_p: Array
    d_params: Array
    values: Array  # float32 [B]
    d_values: Array
    log_prob: Array
    slope: Array
    bonus: Array
    entropy: Array


def make_scratch(spec: PolicySpec, num_rows: int, mask_size: int) -> Scratch:
    def real(*shape: int) -> Array:
        return np.empty(shape, np.float32)

    rows, size = num_rows, 2 * num_rows * sum(spec.network_arch)
    mask = np.empty((rows if mask_size else 0, mask_size), np.bool_)
    vectors = [real(rows) for _ in range(4)]
    batch = Batch(real(rows, spec.num_flat), real(rows, spec.action.num_stored), mask, *vectors)
    seen = batch.flat if spec.seen.num_flat == spec.num_flat else real(rows, spec.seen.num_flat)
    outputs = [real(rows, spec.action.num_params) for _ in range(4)]
    return Scratch(batch, seen, real(size), real(size), *outputs, *(real(rows) for _ in range(6)))
