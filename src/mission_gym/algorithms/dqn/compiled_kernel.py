"""The compiled kernel of DQN for MLPs on the CPU: forward, hand-written backward and Adam.

Parameters, gradient and moments are one flat vector each, and every array is a view of it; activations and
Adam are those of PPO's kernel. The streams of a dueling network are one wide layer. A target that stays is
asked once for all steps. It agrees with the torch kernel within rounding.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from mission_gym.algorithms.dqn.kernel import ADAM_EPSILON, Batches, NoiseOf, QSettings, QStats, make_evidence
from mission_gym.data import Array
from mission_gym.learner.loops import ACTIVATIONS, step_adam
from mission_gym.learner.network import CompiledNetwork, copy_views, fill_views, split_flat
from mission_gym.learner.proof import Evidence
from mission_gym.policy import PolicySpec
from mission_gym.policy.q_numpy import join_streams, stream_names
from mission_gym.policy.sampling import FILLER


class _Net:
    """Views of one flat vector: hidden layers, the last as wide as all streams, and a head per stream."""

    def __init__(self, spec: PolicySpec, num_flat: int) -> None:
        self.streams = stream_names(spec)
        self.width = spec.network_arch[-1]
        sizes = (num_flat, *spec.network_arch[:-1], self.width * len(self.streams))
        outputs = [spec.action.num_params if name == "q" else 1 for name in self.streams]
        shapes = [shape for a, b in pairwise(sizes) for shape in ((a, b), (b,))]
        shapes += [shape for num in outputs for shape in ((self.width, num), (num,))]
        self.flat, views = split_flat(shapes)
        pairs = list(zip(views[::2], views[1::2], strict=True))
        self.hidden, self.heads = pairs[: len(sizes) - 1], pairs[len(sizes) - 1 :]

    def part(self, stream: int) -> slice:
        """The columns of a stream in the last hidden layer."""
        return slice(stream * self.width, (stream + 1) * self.width)

    def named(self) -> dict[str, Array]:
        """Views under the torch form's names and shapes, so that checkpoints know no kernel."""
        layers = {f"body.{2 * i}": pair for i, pair in enumerate(self.hidden[:-1])}
        weight, bias = self.hidden[-1]
        for stream, name in enumerate(self.streams):
            part = self.part(stream)
            layers |= {f"{name}.0": (weight[:, part], bias[part]), f"{name}.2": self.heads[stream]}
        return {
            f"{name}.{kind}": array
            for name, (weight, bias) in layers.items()
            for kind, array in (("weight", weight.T), ("bias", bias))
        }


class CompiledQKernel(CompiledNetwork):
    """See `q_kernel.QKernel`; no noisy layers. Begins with the arrays it is given, the torch form's draw."""

    def __init__(self, spec: PolicySpec, num_flat: int, initial: dict[str, Array]) -> None:
        assert spec.q is not None
        assert spec.q.noisy_sigma is None, "noisy layers are the torch kernel's"
        self.net, self.target_net, self.grad, self.first, self.second = (
            _Net(spec, num_flat) for _ in range(5)
        )
        super().__init__(self.net, self.first, self.second, initial)
        self._activate, self._backward_activation = ACTIVATIONS[spec.activation]
        self._vectors = (self.net.flat, self.grad.flat, self.first.flat, self.second.flat)
        self._rows, self._ones = np.arange(0), np.ones(0, np.float32)
        self.copy_to_target()

    def _forward(self, net: _Net, x: Array) -> tuple[list[Array], Array]:
        """Hidden outputs and action values [N, A] for inputs [N, F]."""
        hidden: list[Array] = []
        for weight, bias in net.hidden:
            x = x @ weight
            self._activate(x[None], bias[None, None])
            hidden.append(x)
        outputs = []
        for stream, (weight, bias) in enumerate(net.heads):
            out = (x[:, net.part(stream)] if len(net.heads) > 1 else x) @ weight
            out += bias
            outputs.append(out)
        return hidden, join_streams(outputs)

    @np.errstate(over="ignore", invalid="ignore")  # the gradient's norm tells
    def learn(self, batches: Batches, settings: QSettings, noise_of: NoiseOf) -> QStats:
        size, num = settings.batch_size, len(batches.action)
        flat, behind = batches.inputs.flat, batches.next_inputs.flat
        if settings.double:  # one pass over both ends of a transition
            pairs = (-1, size, flat.shape[1])
            flat = np.concatenate([flat.reshape(pairs), behind.reshape(pairs)], axis=1).reshape(2 * num, -1)
        # A target that stays is asked once for all steps.
        of_target = self._forward(self.target_net, behind)[1] if settings.tau == 1.0 else None
        values, errors, norms = np.empty(num, np.float32), np.empty(num, np.float32), []
        for start in range(0, num, size):
            part = slice(start, start + size)
            x = flat[2 * start : 2 * (start + size)] if settings.double else flat[part]
            next_values = (
                self._forward(self.target_net, behind[part])[1] if of_target is None else of_target[part]
            )
            norms.append(self._differentiate(batches, part, x, next_values, settings, values, errors))
            if not math.isfinite(norms[-1]):
                break
            clip = min(settings.max_grad_norm / (norms[-1] + 1e-6), 1.0)
            self.num_steps += 1
            step_adam(*self._vectors, self.num_steps, settings.learning_rate, clip, ADAM_EPSILON)
            if of_target is None:
                self.target_net.flat += np.float32(settings.tau) * (self.net.flat - self.target_net.flat)
        made = len(norms) * size
        return _summarise(batches.weight, values[:made], errors[:made], norms, huber=settings.huber)

    def differentiate(self, batches: Batches, settings: QSettings) -> Evidence:
        flat, behind, num = batches.inputs.flat, batches.next_inputs.flat, len(batches.action)
        x = np.concatenate([flat, behind]) if settings.double else flat
        values, errors = np.empty(num, np.float32), np.empty(num, np.float32)
        next_values = self._forward(self.target_net, behind)[1]
        norm = self._differentiate(batches, slice(0, num), x, next_values, settings, values, errors)
        stats = _summarise(batches.weight, values, errors, [norm], huber=settings.huber)
        return make_evidence(stats, copy_views(self.grad))

    def _differentiate(
        self,
        batches: Batches,
        part: slice,
        x: Array,
        next_values: Array,
        settings: QSettings,
        values: Array,
        errors: Array,
    ) -> float:
        """Write the gradient of a minibatch, its values Q(o, a) and errors; returns the gradient's norm.

        x: inputs, with `double` those of both ends. y = r + discount Q_target(o', argmax Q_judge(o', .)).
        """
        size = part.stop - part.start
        index = self._index(size)
        hidden, q = self._forward(self.net, x)
        judged = q[size:] if settings.double else next_values
        if batches.next_mask is not None:
            judged = np.where(batches.next_mask[part], judged, np.float32(FILLER))
        target = next_values[index, judged.argmax(axis=1)]
        target *= batches.discount[part]
        target += batches.reward[part]
        action = batches.action[part]
        value = values[part] = q[index, action]
        error = errors[part] = value - target
        slope = np.minimum(np.maximum(error, -1.0), 1.0) if settings.huber else 2.0 * error
        if batches.weight is not None:
            slope *= batches.weight[part]
        slope *= np.float32(1.0 / size)
        self._backward(x[:size], hidden, q.shape[1], action, slope)
        return math.sqrt(float(self.grad.flat.dot(self.grad.flat)))

    def _backward(self, x: Array, hidden: list[Array], num_actions: int, action: Array, slope: Array) -> None:
        """Write the gradient of every array for d loss / d Q(o, a) = slope [B], over the first B rows."""
        num = len(slope)
        d_q = np.zeros((num, num_actions), np.float32)
        d_q[self._rows, action] = slope
        d_outputs = [d_q]
        if len(self.net.heads) > 1:  # Q = V + A - mean(A)
            d_q -= (slope * np.float32(1.0 / num_actions))[:, None]
            d_outputs.append(slope[:, None])
        top = hidden[-1][:num]
        d = np.empty_like(top)
        for stream, d_out in enumerate(d_outputs):
            part = self.net.part(stream)
            weight, bias = self.grad.heads[stream]
            np.matmul(top[:, part].T, d_out, out=weight)
            np.dot(self._ones, d_out, out=bias)
            np.matmul(d_out, self.net.heads[stream][0].T, out=d[:, part])
        for layer in range(len(hidden) - 1, -1, -1):
            weight, bias = self.grad.hidden[layer]
            self._backward_activation(d[None], hidden[layer][None, :num], bias[None, None])
            np.matmul((hidden[layer - 1][:num] if layer else x).T, d, out=weight)
            if layer:
                d = d @ self.net.hidden[layer][0].T

    def _index(self, size: int) -> Array:
        """0, 1, ... size - 1; beside it as many ones: a product with them sums faster than `sum` does."""
        if len(self._rows) != size:
            self._rows, self._ones = np.arange(size), np.ones(size, np.float32)
        return self._rows

    def copy_to_target(self) -> None:
        self.target_net.flat[:] = self.net.flat

    def target(self) -> dict[str, Array]:
        return copy_views(self.target_net)

    def load_target(self, arrays: dict[str, Array]) -> None:
        fill_views(self.target_net, arrays)


def _summarise(
    weight: Array | None, values: Array, errors: Array, norms: list[float], *, huber: bool
) -> QStats:
    """The statistics of all steps at once."""
    sizes = np.abs(errors)
    losses = np.where(sizes <= 1.0, 0.5 * errors * errors, sizes - 0.5) if huber else errors * errors
    if weight is not None:
        losses = losses * weight[: len(losses)]
    means = [column.reshape(len(norms), -1).mean(axis=1) for column in (losses, values, sizes)]
    return QStats(np.stack([*means, norms], axis=1).astype(np.float64), errors)
