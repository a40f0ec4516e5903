"""The analytic kernel for MLPs on the CPU: forward, hand-written backward and Adam.

Small networks are bound by call overhead and by tanh: products are NumPy's, most of the rest is compiled
(`loops.py`). Actor and critic run as one stack [2, B, H]; parameters, gradient and moments are one flat
vector each, and every array of the network is a view of it. It agrees with the torch kernel within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from mission_gym.data import Array
from mission_gym.learner.heads import make_head
from mission_gym.learner.kernel import (
    ADAM_BETAS,
    ADAM_EPSILON,
    ADVANTAGE_FLOOR,
    EpochStats,
    Samples,
    StepSettings,
    mean_stats,
)
from mission_gym.learner.loops import activate_tanh, adam, backward_tanh, clipped_losses
from mission_gym.policy import Encoded, PolicySpec

_EVALUATE_ROWS = 2048  # rows per pass over a block: activations stay in the cache


def _activate_relu(x: Array, bias: Array) -> None:
    x += bias
    np.maximum(x, 0.0, out=x)


def _activate_elu(x: Array, bias: Array) -> None:
    x += bias
    np.copyto(x, np.expm1(np.minimum(x, 0.0)), where=x < 0)


def _backward_relu(d: Array, h: Array, d_bias: Array) -> None:
    d *= h > 0
    d.sum(axis=1, keepdims=True, out=d_bias)


def _backward_elu(d: Array, h: Array, d_bias: Array) -> None:
    d *= np.where(h > 0, np.float32(1.0), h + np.float32(1.0))
    d.sum(axis=1, keepdims=True, out=d_bias)


# Each activation: x = f(x + bias) in place; and d *= f', from its output h, with the gradient of the bias.
_ACTIVATIONS: dict[str, tuple[Callable[[Array, Array], None], Callable[[Array, Array, Array], None]]] = {
    "tanh": (activate_tanh, backward_tanh),
    "relu": (_activate_relu, _backward_relu),
    "elu": (_activate_elu, _backward_elu),
}


def _normalize(advantage: Array, weight: Array) -> Array:
    centered: Array = advantage - weight.dot(advantage)
    deviation = math.sqrt(float(weight.dot(centered * centered)))
    centered *= np.float32(1.0 / max(deviation, ADVANTAGE_FLOOR))
    return centered


class _Net:
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


def _num_parameters(spec: PolicySpec, num_flat: int) -> int:
    sizes = (num_flat, *spec.network_arch)
    heads = (sizes[-1] + 1) * (spec.action.num_params + 1)
    hidden = sum(2 * (num_in + 1) * num_out for num_in, num_out in pairwise(sizes))
    return hidden + heads + (spec.action.num_stored if spec.action.kind == "box" else 0)


class NumpyKernel:
    """See `kernel.Kernel`. Begins with the arrays it is given: the same draw as the torch form's."""

    def __init__(self, spec: PolicySpec, num_flat: int, initial: dict[str, Array]) -> None:
        size = _num_parameters(spec, num_flat)
        self.spec = spec
        self.flat, self.grad = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.first, self.second = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.num_steps = 0
        self.net, self.net_grad, self.net_first, self.net_second = (
            _Net(flat, spec, num_flat) for flat in (self.flat, self.grad, self.first, self.second)
        )
        self.head = make_head(spec.action)
        self._activate, self._deactivate = _ACTIVATIONS[spec.activation]
        self.load_parameters(initial)

    def _forward(self, x: Array) -> tuple[list[Array], Array, Array]:
        """Hidden outputs (each [2, B, H]), actor outputs [B, P] and values [B] for inputs [B, F]."""
        hidden: list[Array] = []
        h = x
        for weight, bias in self.net.hidden:
            h = np.matmul(h, weight)
            self._activate(h, bias)
            hidden.append(h)
        actor, critic = hidden[-1]
        weight, bias = self.net.actor_head
        params = actor @ weight
        params += bias
        weight, bias = self.net.critic_head
        values = (critic @ weight)[:, 0]
        values += bias
        return hidden, params, values

    def evaluate(self, inputs: Encoded, action: Array, mask: Array | None) -> tuple[Array, Array]:
        log_probs, values = [], []
        for start in range(0, len(inputs.flat), _EVALUATE_ROWS):
            rows = slice(start, start + _EVALUATE_ROWS)
            _, params, value = self._forward(inputs.flat[rows])
            values.append(value)
            acted = action[rows]
            if len(acted):
                masked = None if mask is None else mask[rows]
                self.head.load(params[: len(acted)], self.net.log_std, acted, masked)
                log_probs.append(self.head.log_prob)
        return np.concatenate(log_probs), np.concatenate(values)

    def load_samples(self, samples: Samples) -> None:
        self._samples = samples

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> EpochStats | None:
        # One gather for the epoch; minibatches are slices of it.
        samples, rows = self._samples, order.ravel()
        flat = samples.inputs.flat.take(rows, axis=0)
        action = samples.action.take(rows, axis=0)
        mask = None if samples.mask is None else samples.mask.take(rows, axis=0)
        weights = np.ones(len(rows), np.float32) if samples.weight is None else samples.weight.take(rows)
        columns = [column.take(rows) for column in (samples.log_prob, samples.advantage, samples.returns)]
        importance = None if samples.importance is None else samples.importance.take(rows)
        stats = []
        size = order.shape[1]
        for start in range(0, len(rows), size):
            if stop():
                return None
            part = slice(start, start + size)
            weight = weights[part] * np.float32(1.0 / max(float(weights[part].sum()), 1.0))
            log_prob, advantage, returns = (column[part] for column in columns)
            if settings.normalize_advantage:
                advantage = _normalize(advantage, weight)
            if importance is not None:
                advantage = advantage * importance[part]
            hidden, params, values = self._forward(flat[part])
            self.head.load(params, self.net.log_std, action[part], None if mask is None else mask[part])
            d_values, row = self._losses(settings, weight, log_prob, advantage, returns, values)
            self._backward(flat[part], hidden, self.head.d_params, d_values)
            if self.net_grad.log_std is not None:
                self.net_grad.log_std[:] = self.head.d_log_std
            norm = math.sqrt(float(self.grad.dot(self.grad)))
            if math.isfinite(norm):
                self._adam(settings, min(settings.max_grad_norm / (norm + 1e-6), 1.0))
            stats.append((*row, norm))
        return mean_stats(np.array(stats, np.float64))

    def _losses(
        self,
        settings: StepSettings,
        weight: Array,
        old_log_prob: Array,
        advantage: Array,
        returns: Array,
        values: Array,
    ) -> tuple[Array, tuple[float, ...]]:
        """Let the head compute d loss / d actor outputs; return d loss / d values and the statistics.

        Sums over rows are dot products with `weight`, which sums to 1.
        """
        slope = np.empty_like(weight)
        loss, kl, clipped, worst = clipped_losses(
            self.head.log_prob, old_log_prob, advantage, weight, np.float32(settings.clip_range), slope
        )
        entropy = self.head.backward(slope, weight * np.float32(settings.ent_coef))
        miss = values - returns
        d_values = weight * miss
        value_loss = float(d_values.dot(miss))
        d_values *= np.float32(2.0 * settings.vf_coef)
        return d_values, (
            float(loss),
            value_loss,
            float(weight.dot(entropy)),
            float(kl),
            float(clipped),
            float(worst),
        )

    def _backward(self, x: Array, hidden: list[Array], d_params: Array, d_values: Array) -> None:
        """Write the gradient of every array; it is the whole of it, so nothing is zeroed first."""
        actor, critic = hidden[-1]
        weight, bias = self.net_grad.actor_head
        np.matmul(actor.T, d_params, out=weight)
        d_params.sum(axis=0, out=bias)
        weight, bias = self.net_grad.critic_head
        np.matmul(critic.T, d_values[:, None], out=weight)
        bias[0] = d_values.sum()
        d = np.empty_like(hidden[-1])
        np.matmul(d_params, self.net.actor_head[0].T, out=d[0])
        np.multiply(d_values[:, None], self.net.critic_head[0].T, out=d[1])
        for layer in range(len(hidden) - 1, -1, -1):
            weight, bias = self.net_grad.hidden[layer]
            self._deactivate(d, hidden[layer], bias)
            below = hidden[layer - 1].transpose(0, 2, 1) if layer else x.T
            np.matmul(below, d, out=weight)
            if layer:
                d = np.matmul(d, self.net.hidden[layer][0].transpose(0, 2, 1))

    def _adam(self, settings: StepSettings, clip: float) -> None:
        """Adam with bias correction, in place on the flat vectors."""
        beta1, beta2 = ADAM_BETAS
        self.num_steps += 1
        adam(
            self.flat,
            self.grad,
            self.first,
            self.second,
            np.float32(clip),
            np.float32(settings.learning_rate / (1.0 - beta1**self.num_steps)),
            np.float32(1.0 / math.sqrt(1.0 - beta2**self.num_steps)),
            (np.float32(beta1), np.float32(beta2)),
            np.float32(ADAM_EPSILON),
        )

    def parameters(self) -> dict[str, Array]:
        return {name: view.copy() for name, view in self.net.named().items()}

    def load_parameters(self, arrays: dict[str, Array]) -> None:
        for name, view in self.net.named().items():
            view[:] = arrays[name]

    def optimizer(self) -> dict[str, Array]:
        arrays = {f"mean.{name}": view.copy() for name, view in self.net_first.named().items()}
        arrays |= {f"square.{name}": view.copy() for name, view in self.net_second.named().items()}
        return arrays | {"step": np.array(self.num_steps, np.float32)}

    def load_optimizer(self, arrays: dict[str, Array]) -> None:
        for prefix, net in (("mean", self.net_first), ("square", self.net_second)):
            for name, view in net.named().items():
                view[:] = arrays[f"{prefix}.{name}"]
        self.num_steps = int(arrays["step"])
