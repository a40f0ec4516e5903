"""What the compiled kernel computes with: the views of a flat vector of parameters, and kept arrays.

The named tuples are what compiled code takes.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mission_gym.algorithms.ppo.heads import KINDS
from mission_gym.compiled import name_sources
from mission_gym.data import Array
from mission_gym.learner import loops
from mission_gym.learner.loops import ACTIVATIONS
from mission_gym.policy import PolicySpec

_SOURCES = (
    "compiled_steps",
    "passes",
    "heads",
    "compiled_loss",
    "network",
)  # of what is compiled, with the loops
_FILES = [*(Path(__file__).with_name(f"{name}.py") for name in _SOURCES), Path(loops.__file__)]
_MARK = np.dtype([(name_sources(_FILES), "i1")])


class Net:
    """Views of one flat vector: a stack of hidden layers for actor and critic, and their heads."""

    def __init__(self, flat: Array, spec: PolicySpec, num_flat: int) -> None:
        start = 0

        def take(*shape: int) -> Array:
            nonlocal start
            view = flat[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
            return view

        sizes = (num_flat, *spec.network_arch)
        self.hidden = [(take(2, num_in, num_out), take(2, 1, num_out)) for num_in, num_out in pairwise(sizes)]
        self.actor_head = (take(sizes[-1], spec.action.num_params), take(spec.action.num_params))
        self.critic_head = (take(sizes[-1], 1), take(1))
        self.log_std = take(spec.action.num_stored) if spec.action.kind == "box" else None

    def named(self) -> dict[str, Array]:
        """Views under the torch form's names and shapes, so that checkpoints know no kernel."""
        views: dict[str, Array] = {}
        for row, (name, head) in enumerate((("actor", self.actor_head), ("critic", self.critic_head))):
            layers = [(weight[row], bias[row, 0]) for weight, bias in self.hidden]
            for number, (weight, bias) in enumerate([*layers, head]):
                views[f"{name}.{2 * number}.weight"], views[f"{name}.{2 * number}.bias"] = weight.T, bias
        return views if self.log_std is None else views | {"log_std": self.log_std}


def count_parameters(spec: PolicySpec, num_flat: int) -> int:
    sizes = (num_flat, *spec.network_arch)
    heads = (sizes[-1] + 1) * (spec.action.num_params + 1)
    hidden = sum(2 * (num_in + 1) * num_out for num_in, num_out in pairwise(sizes))
    return hidden + heads + (spec.action.num_stored if spec.action.kind == "box" else 0)


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
