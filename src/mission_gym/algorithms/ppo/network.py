"""What the compiled kernel computes with: the views of a flat vector of parameters, and kept arrays.

The named tuples are what compiled code takes.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mission_gym.compiled import name_sources
from mission_gym.data import Array
from mission_gym.learner import loops
from mission_gym.learner.loops import ACTIVATIONS
from mission_gym.learner.network import split_flat
from mission_gym.policy import PolicySpec

KINDS = ("categories", "binary", "box")  # of actions
CATEGORIES, BINARY, BOX = range(3)

# Of what is compiled, with the loops.
_SOURCES = ("compiled_steps", "passes", "heads", "compiled_loss", "network")
_FILES = [*(Path(__file__).with_name(f"{name}.py") for name in _SOURCES), Path(loops.__file__)]
_MARK = np.dtype([(name_sources(_FILES), "i1")])


class Net:
    """Views of one flat vector: a stack of hidden layers for actor and critic, and their heads."""

    def __init__(self, spec: PolicySpec, num_flat: int, flat: Array | None = None) -> None:
        sizes, num_params = (num_flat, *spec.network_arch), spec.action.num_params
        shapes: list[tuple[int, ...]] = [
            shape for a, b in pairwise(sizes) for shape in ((2, a, b), (2, 1, b))
        ]
        shapes += [(sizes[-1], num_params), (num_params,), (sizes[-1], 1), (1,)]
        if spec.action.kind == "box":
            shapes.append((spec.action.num_stored,))
        self.flat, views = split_flat(shapes, flat)
        self.log_std = views.pop() if spec.action.kind == "box" else None
        *self.hidden, self.actor_head, self.critic_head = zip(views[::2], views[1::2], strict=True)

    def named(self) -> dict[str, Array]:
        """Views under the torch form's names and shapes, so that checkpoints know no kernel."""
        views: dict[str, Array] = {}
        for row, (name, head) in enumerate((("actor", self.actor_head), ("critic", self.critic_head))):
            layers = [(weight[row], bias[row, 0]) for weight, bias in self.hidden]
            for number, (weight, bias) in enumerate([*layers, head]):
                views[f"{name}.{2 * number}.weight"], views[f"{name}.{2 * number}.bias"] = weight.T, bias
        return views if self.log_std is None else views | {"log_std": self.log_std}


class Shape(NamedTuple):
    """What a network is, for compiled code."""

    sizes: Array  # int64: inputs, then the width of each hidden layer
    edges: Array  # int64: columns of the parts of categorical logits
    num_params: int  # outputs of the actor
    kind: int
    activation: int
    sources: Array  # empty; its type tells numba's cache which code it was compiled from


def make_shape(spec: PolicySpec, num_flat: int) -> Shape:
    return Shape(
        sizes=np.array([num_flat, *spec.network_arch], np.int64),
        edges=np.cumsum([0, *spec.action.nvec]).astype(np.int64),
        num_params=spec.action.num_params,
        kind=KINDS.index(spec.action.kind),
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


def make_scratch(spec: PolicySpec, num_flat: int, num_rows: int, mask_size: int) -> Scratch:
    def real(*shape: int) -> Array:
        return np.empty(shape, np.float32)

    rows, size = num_rows, 2 * num_rows * sum(spec.network_arch)
    mask = np.empty((rows if mask_size else 0, mask_size), np.bool_)
    vectors = [real(rows) for _ in range(4)]
    batch = Batch(real(rows, num_flat), real(rows, spec.action.num_stored), mask, *vectors)
    outputs = [real(rows, spec.action.num_params) for _ in range(4)]
    return Scratch(batch, real(size), real(size), *outputs, *(real(rows) for _ in range(6)))
