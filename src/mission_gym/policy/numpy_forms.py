"""The NumPy forms of MLP policies: they act on a small batch in a few microseconds, without torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from mission_gym.data import ActOut, Array, Leaves, Weights
from mission_gym.policy.cells import CELLS, Layer, NumpyMemory
from mission_gym.policy.encoding import EncodingPolicy, Shapes
from mission_gym.policy.layout import PolicySpec
from mission_gym.policy.sampling import (
    Sampler,
    choose_by_value,
    draw_layer_noise,
    make_noise_generator,
    sample_squashed,
)


def _relu(x: Array) -> Array:
    return np.maximum(x, 0.0, out=x)


def _tanh(x: Array) -> Array:
    return np.tanh(x, out=x)


def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": _tanh, "relu": _relu, "elu": _elu}


def _layer_shapes(name: str, num_in: int, num_out: int, kind: str = "") -> Shapes:
    return {
        f"{name}.weight{kind}": ((num_out, num_in), "float32"),
        f"{name}.bias{kind}": ((num_out,), "float32"),
    }


def _read_layer(arrays: dict[str, Array], name: str, kind: str = "") -> Layer:
    return arrays[f"{name}.weight{kind}"].T, arrays[f"{name}.bias{kind}"]


class NumpyPolicy(EncodingPolicy):
    """The form `actor`: samples actions from the actor's outputs."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._sampler = Sampler(spec.action)
        self._activation = ACTIVATIONS[spec.activation]
        self._layers: list[Layer] = []
        self._memory: NumpyMemory | None = None
        self._log_std: Array | None = None

    def shapes(self) -> Shapes:
        """Shapes and dtypes of the arrays that `load` reads."""
        num_features, shapes = self._encoder.num_flat, self._encoder.shapes()
        for name, num_in in self._memory_layers().items():
            num_out = CELLS[self.spec.recurrent].num_gates * self.spec.recurrent_size
            shapes |= _layer_shapes(f"memory.{name}", num_in, num_out)
        if self.spec.has_memory:
            num_features += self.spec.recurrent_size
        widths = (num_features, *self.spec.network_arch, self.spec.num_outputs)
        for i, (num_in, num_out) in enumerate(pairwise(widths)):
            shapes |= _layer_shapes(f"actor.{2 * i}", num_in, num_out)
        if self.spec.has_log_std:
            shapes["log_std"] = ((self.spec.action.num_reals,), "float32")
        return shapes

    def _memory_layers(self) -> dict[str, int]:
        """The layers of the memory by name, with the widths of their inputs."""
        if not self.spec.has_memory:
            return {}
        layers = {"input": self._encoder.num_flat}
        return layers | (
            {"hidden": self.spec.recurrent_size} if CELLS[self.spec.recurrent].reads_hidden else {}
        )

    def load(self, weights: Weights) -> None:
        """Use these weights; arrays are kept by reference."""
        super().load(weights)
        layers = {name: _read_layer(weights.arrays, f"memory.{name}") for name in self._memory_layers()}
        self._memory = NumpyMemory(self.spec.recurrent, layers) if layers else None
        depth = len(self.spec.network_arch) + 1
        self._layers = [_read_layer(weights.arrays, f"actor.{2 * i}") for i in range(depth)]
        self._log_std = weights.arrays.get("log_std")

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        """Actions for leaves [B, ...]. noise: [B, K] to explore, None for the most likely action."""
        x = self._encoder.encode_flat(obs)
        if self._memory is None:
            return self._sampler(self._compute(x), self._log_std, mask, noise)
        state = self._memory(x, state)
        x = np.concatenate((state[0], x), axis=1)
        return self._sampler(self._compute(x), self._log_std, mask, noise)._replace(state=state)

    def _compute(self, x: Array) -> Array:
        """The outputs of the hidden layers."""
        for weight, bias in self._layers[:-1]:
            x = x @ weight
            x += bias
            x = self._activation(x)
        weight, bias = self._layers[-1]
        outputs: Array = x @ weight + bias
        return outputs


class NumpySquashedPolicy(NumpyPolicy):
    """The form `squashed`: samples real numbers from Gaussians squashed by tanh."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._exploration = 0.0

    def load(self, weights: Weights) -> None:
        super().load(weights)
        self._exploration = weights.exploration

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        """Actions for leaves [B, ...]. noise: [B, K] to explore, None for tanh of the mean."""
        return sample_squashed(self._compute(self._encoder.encode_flat(obs)), noise, self._exploration)


def stream_names(spec: PolicySpec) -> tuple[str, ...]:
    """The streams of a network of action values, in the order in which their noise is drawn."""
    return ("q", "value") if spec.dueling else ("q",)


class NumpyQPolicy(EncodingPolicy):
    """The form `values`: chooses the action with the highest value, or a random one with probability epsilon.

    Layers `body` are shared. Each stream, `q` and if dueling `value`, has one hidden and one linear layer.
    With noisy layers, W = mean + sigma * outer(noise), one draw per acting call.
    """

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._noisy = spec.noisy_sigma is not None
        self._activation = ACTIVATIONS[spec.activation]
        self._body: list[Layer] = []
        self._streams: list[list[Layer]] = []
        self._sigmas: list[list[Layer]] = []
        self._epsilon = 0.0

    def shapes(self) -> Shapes:
        """Shapes and dtypes of the arrays that `load` reads."""
        *widths, last = (self._encoder.num_flat, *self.spec.network_arch)
        shapes = self._encoder.shapes()
        for i, (num_in, num_out) in enumerate(pairwise(widths)):
            shapes |= _layer_shapes(f"body.{2 * i}", num_in, num_out)
        for name in stream_names(self.spec):
            num_out = 1 if name == "value" else self.spec.num_outputs
            for kind in ("", "_sigma") if self._noisy else ("",):
                shapes |= _layer_shapes(f"{name}.0", widths[-1], last, kind)
                shapes |= _layer_shapes(f"{name}.2", last, num_out, kind)
        return shapes

    def load(self, weights: Weights) -> None:
        """Use these weights; arrays are kept by reference."""
        super().load(weights)
        arrays, names = weights.arrays, stream_names(self.spec)
        self._body = [_read_layer(arrays, f"body.{2 * i}") for i in range(len(self.spec.network_arch) - 1)]
        self._streams = [[_read_layer(arrays, f"{name}.{i}") for i in (0, 2)] for name in names]
        if self._noisy:
            self._sigmas = [[_read_layer(arrays, f"{name}.{i}", "_sigma") for i in (0, 2)] for name in names]
        self._epsilon = weights.exploration

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        """Actions for leaves [B, ...]. noise: [B, 1] to explore, None for the best action."""
        x = self._encoder.encode_flat(obs)
        for layer in self._body:
            x = self._activation(_apply(layer, x))
        streams = self._streams
        if self._noisy and noise is not None:
            rng = make_noise_generator(noise)
            streams = [
                [_disturb(layer, sigma, rng) for layer, sigma in zip(*pair, strict=True)]
                for pair in zip(self._streams, self._sigmas, strict=True)
            ]
        outputs = [_apply(last, self._activation(_apply(first, x))) for first, last in streams]
        return choose_by_value(_join_streams(outputs), mask, noise, self._epsilon)


def _join_streams(outputs: list[Array]) -> Array:
    """Q = V + A - mean(A), the mean over all actions, legal or not. Without a value stream Q is A."""
    if len(outputs) == 1:
        return outputs[0]
    advantage, value = outputs
    joined: Array = advantage + (value - advantage.mean(axis=1, keepdims=True))
    return joined


def _apply(layer: Layer, x: Array) -> Array:
    weight, bias = layer
    x = np.dot(x, weight)  # the same result as `@`, in half the time for a few rows
    x += bias
    return x


def _disturb(layer: Layer, sigma: Layer, rng: np.random.Generator) -> Layer:
    for_in, for_out = draw_layer_noise(rng, *layer[0].shape)
    return layer[0] + sigma[0] * np.outer(for_in, for_out), layer[1] + sigma[1] * for_out
