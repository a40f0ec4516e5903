"""Forward and hand-written backward of actor and critic, for the analytic kernel.

Both run as one stack [2, B, H]. Parameters are one flat vector; every array of the network is a view of it.
Products are NumPy's, most of the rest is compiled (`loops.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mission_gym.data import Array
from mission_gym.learner.heads import make_head
from mission_gym.learner.kernel import ADAM_BETAS, StepSettings
from mission_gym.learner.loops import (
    activate_relu,
    activate_tanh,
    adam,
    backward_relu,
    backward_tanh,
    clipped_losses,
)
from mission_gym.policy import PolicySpec


def _activate_elu(x: Array, bias: Array) -> None:
    x += bias
    np.copyto(x, np.expm1(np.minimum(x, 0.0)), where=x < 0)


def _backward_elu(d: Array, h: Array, d_bias: Array) -> None:
    d *= np.where(h > 0, np.float32(1.0), h + np.float32(1.0))
    d.sum(axis=1, keepdims=True, out=d_bias)


# Each activation: x = f(x + bias) in place; and d *= f', from its output h, with the gradient of the bias.
ACTIVATIONS: dict[str, tuple[Callable[[Array, Array], None], Callable[[Array, Array, Array], None]]] = {
    "tanh": (activate_tanh, backward_tanh),
    "relu": (activate_relu, backward_relu),
    "elu": (_activate_elu, _backward_elu),
}


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


def step_adam(
    vectors: tuple[Array, Array, Array, Array], step: int, learning_rate: float, clip: float, epsilon: float
) -> None:
    """Adam's step number `step` with bias correction, in place on parameters, gradient (times `clip`) and
    both moments."""
    beta1, beta2 = ADAM_BETAS
    adam(
        *vectors,
        np.float32(clip),
        np.float32(learning_rate / (1.0 - beta1**step)),
        np.float32(1.0 / math.sqrt(1.0 - beta2**step)),
        (np.float32(beta1), np.float32(beta2)),
        np.float32(epsilon),
    )


class Rows(NamedTuple):
    """Rows of a minibatch. The weights of the whole minibatch sum to 1."""

    flat: Array  # float32 [B, F]
    action: Array  # [B, K]
    mask: Array | None  # bool [B, M]
    weight: Array  # float32 [B]
    log_prob: Array  # float32 [B], of the policy before this update
    advantage: Array  # float32 [B], normalised over the whole minibatch
    returns: Array  # float32 [B]

    def part(self, rows: slice) -> Rows:
        return Rows(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


class _Room:
    """Arrays for a pass over B rows, kept: to ask the system for pages again would take as long as the
    products."""

    def __init__(self, spec: PolicySpec, num_rows: int) -> None:
        stacks = [(2, num_rows, width) for width in spec.network_arch]
        self.hidden = [np.empty(stack, np.float32) for stack in stacks]
        self.d_hidden = [np.empty(stack, np.float32) for stack in stacks]


class Replica:
    """Learns from some rows of each minibatch: parameters are shared, the gradient is its own."""

    def __init__(self, net: Net, spec: PolicySpec, num_flat: int) -> None:
        self.net = net
        self.grad = np.zeros(count_parameters(spec, num_flat), np.float32)
        self.net_grad = Net(self.grad, spec, num_flat)
        self.head = make_head(spec.action)
        self._spec = spec
        self._rooms: dict[int, _Room] = {}  # by the number of rows: few, as sizes repeat
        self._activate, self._backward_activation = ACTIVATIONS[spec.activation]

    def evaluate(self, flat: Array, action: Array, mask: Array | None) -> tuple[Array, Array]:
        """Log-probabilities of the first len(action) rows, and values of all."""
        params, values = self._forward(flat, self._room(len(flat)))
        self.head.load(params[: len(action)], self.net.log_std, action, mask)
        return self.head.log_prob, values

    def learn(self, rows: Rows, settings: StepSettings) -> tuple[float, ...]:
        """Write the gradient of these rows; returns policy loss, value loss, entropy, KL and clip fraction,
        each a sum with the rows' weights, and the largest |ratio - 1|."""
        room = self._room(len(rows.flat))
        params, values = self._forward(rows.flat, room)
        self.head.load(params, self.net.log_std, rows.action, rows.mask)
        slope = np.empty_like(rows.weight)
        loss, kl, clipped, worst = clipped_losses(
            self.head.log_prob,
            rows.log_prob,
            rows.advantage,
            rows.weight,
            np.float32(settings.clip_range),
            slope,
        )
        entropy = self.head.backward(slope, rows.weight * np.float32(settings.ent_coef))
        miss = values - rows.returns
        d_values = rows.weight * miss
        value_loss = float(d_values.dot(miss))
        d_values *= np.float32(2.0 * settings.vf_coef)
        self._backward(rows.flat, room, self.head.d_params, d_values)
        if self.net_grad.log_std is not None:
            self.net_grad.log_std[:] = self.head.d_log_std
        bonus = float(rows.weight.dot(entropy))
        return float(loss), value_loss, bonus, float(kl), float(clipped), float(worst)

    def _room(self, num_rows: int) -> _Room:
        if num_rows not in self._rooms:
            self._rooms[num_rows] = _Room(self._spec, num_rows)
        return self._rooms[num_rows]

    def _forward(self, x: Array, room: _Room) -> tuple[Array, Array]:
        """Actor outputs [B, P] and values [B] for inputs [B, F]; hidden outputs stay in the room."""
        h = x
        for (weight, bias), out in zip(self.net.hidden, room.hidden, strict=True):
            h = np.matmul(h, weight, out=out)
            self._activate(h, bias)
        actor, critic = room.hidden[-1]
        weight, bias = self.net.actor_head
        params = actor @ weight
        params += bias
        weight, bias = self.net.critic_head
        values = (critic @ weight)[:, 0]
        values += bias
        return params, values

    def _backward(self, x: Array, room: _Room, d_params: Array, d_values: Array) -> None:
        """Write the gradient of every array; it is the whole of it, so nothing is zeroed first."""
        hidden, d_hidden = room.hidden, room.d_hidden
        actor, critic = hidden[-1]
        weight, bias = self.net_grad.actor_head
        np.matmul(actor.T, d_params, out=weight)
        d_params.sum(axis=0, out=bias)
        weight, bias = self.net_grad.critic_head
        np.matmul(critic.T, d_values[:, None], out=weight)
        bias[0] = d_values.sum()
        d = d_hidden[-1]
        np.matmul(d_params, self.net.actor_head[0].T, out=d[0])
        np.multiply(d_values[:, None], self.net.critic_head[0].T, out=d[1])
        for layer in range(len(hidden) - 1, -1, -1):
            weight, bias = self.net_grad.hidden[layer]
            self._backward_activation(d, hidden[layer], bias)
            below = hidden[layer - 1].transpose(0, 2, 1) if layer else x.T
            np.matmul(below, d, out=weight)
            if layer:
                weights = self.net.hidden[layer][0].transpose(0, 2, 1)
                d = np.matmul(d, weights, out=d_hidden[layer - 1])
