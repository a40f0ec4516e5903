"""The NumPy form of an MLP policy: acts on a small batch in a few microseconds, without torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from mission_gym.data import ActOut, Array, Leaves, Weights
from mission_gym.policy.encoding import EncodingPolicy, Shapes
from mission_gym.policy.layout import PolicySpec
from mission_gym.policy.sampling import Sampler


def _relu(x: Array) -> Array:
    return np.maximum(x, 0.0, out=x)


def _tanh(x: Array) -> Array:
    return np.tanh(x, out=x)


def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": _tanh, "relu": _relu, "elu": _elu}


def layer_shapes(name: str, num_in: int, num_out: int, kind: str = "") -> Shapes:
    """The two arrays of a layer."""
    return {
        f"{name}.weight{kind}": ((num_out, num_in), "float32"),
        f"{name}.bias{kind}": ((num_out,), "float32"),
    }


class NumpyPolicy(EncodingPolicy):
    """Acts with the actor alone; values are the learner's work."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._sampler = Sampler(spec.action)
        self._activation = ACTIVATIONS[spec.activation]
        self._layers: list[tuple[Array, Array]] = []
        self._log_std: Array | None = None

    def shapes(self) -> Shapes:
        """The arrays that `load` reads."""
        widths = (self._encoder.num_flat, *self.spec.network_arch, self.spec.action.num_params)
        shapes = self._encoder.shapes()
        for i, (num_in, num_out) in enumerate(pairwise(widths)):
            shapes |= layer_shapes(f"actor.{2 * i}", num_in, num_out)
        if self.spec.action.num_reals:
            shapes["log_std"] = ((self.spec.action.num_reals,), "float32")
        return shapes

    def load(self, weights: Weights) -> None:
        """Take over the weights; arrays are kept by reference."""
        super().load(weights)
        arrays = weights.arrays
        depth = len(self.spec.network_arch) + 1
        self._layers = [
            (arrays[f"actor.{2 * i}.weight"].T, arrays[f"actor.{2 * i}.bias"]) for i in range(depth)
        ]
        self._log_std = arrays.get("log_std")

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        """Actions for leaves [B, ...]; `noise` [B, K] explores, None plays greedily."""
        x = self._encoder.encode_flat(obs)
        for weight, bias in self._layers[:-1]:
            x = x @ weight
            x += bias
            x = self._activation(x)
        weight, bias = self._layers[-1]
        return self._sampler(x @ weight + bias, self._log_std, mask, noise)
