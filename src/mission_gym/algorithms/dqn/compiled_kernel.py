"""The compiled kernel of DQN for MLPs on the CPU: forward, hand-written backward and Adam on flat vectors.

All gradient steps of a draw run in one call, so that only arithmetic is left. It agrees with the torch kernel
within rounding.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.dqn import compiled_steps
from mission_gym.algorithms.dqn import kernel as contract
from mission_gym.algorithms.dqn.compiled_steps import QRows, QScratch, QShape, QVectors, learn
from mission_gym.algorithms.dqn.kernel import (
    NUM_STATS,
    TARGET,
    NoiseOf,
    QSettings,
    make_evidence,
    scale_power,
)
from mission_gym.data import Array, LeafSpec
from mission_gym.learner.compiled_network import CompiledNetwork, Layout
from mission_gym.learner.mlp import (
    LINEAR,
    Dense,
    layer_shapes,
    make_mlp,
    total_width,
)
from mission_gym.learner.off_policy_learner import StepStats, Transitions
from mission_gym.learner.verify import Evidence
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.policy.numpy_forms import stream_names

_NONE = np.empty(0, np.float32)
_NO_MASK = np.empty((0, 0), np.bool_)
_ROWS_AHEAD = 256  # that the target network passes at once; the outputs of more rows leave the cache
_SOURCES = [Path(str(module.__file__)) for module in (compiled_steps, contract)]


def _list_layers(spec: PolicySpec) -> list[Dense]:
    """The shared layers, then a hidden layer and a head for each stream."""
    *body, width = (spec.num_flat, *spec.network_arch)
    layers = [
        Dense(f"body.{2 * i}", i - 1, num_in, num_out) for i, (num_in, num_out) in enumerate(pairwise(body))
    ]
    top = len(layers) - 1
    for stream in stream_names(spec):
        num_out = 1 if stream == "value" else spec.num_outputs
        layers.append(Dense(f"{stream}.0", top, body[-1], width))
        layers.append(Dense(f"{stream}.2", len(layers) - 1, width, num_out, LINEAR))
    return layers


class CompiledQKernel(CompiledNetwork):
    """See `kernel.QKernel`; without noisy layers. initial: the torch form's draw."""

    def __init__(self, spec: PolicySpec, initial: dict[str, Array]) -> None:
        assert spec.noisy_sigma is None, "noisy layers need the torch kernel"
        layers = _list_layers(spec)
        layout = Layout(layer_shapes(layers))
        super().__init__(layout, initial, frozen=(TARGET,))
        self.target, self.grad = self.frozen[TARGET], np.zeros(layout.size, np.float32)
        self._spec, self._width = spec, total_width(layers)
        heads = [number for number, layer in enumerate(layers) if layer.kind == LINEAR]
        self._heads = tuple(layers[number].name for number in heads)
        self._shape = QShape(
            make_mlp(layers, layout, spec.activation, _SOURCES), heads[0], heads[1] if len(heads) > 1 else -1
        )
        self._scratches: dict[tuple[int, bool], QScratch] = {}  # by sizes, which repeat

    def learn(self, batch: Transitions, settings: QSettings, noise_of: NoiseOf) -> StepStats:
        num = len(batch.action)
        table, errors = np.empty((num // settings.batch_size, NUM_STATS)), np.empty(num, np.float32)
        key = (settings.batch_size, settings.double)
        if key not in self._scratches:
            self._scratches[key] = self._make_scratch(*key)
        rows = QRows(
            flat=batch.inputs.flat,
            next_flat=batch.next_inputs.flat,
            action=batch.action,
            reward=batch.reward,
            discount=batch.discount,
            next_mask=_NO_MASK if batch.next_mask is None else batch.next_mask,
            weight=_NONE if batch.weight is None else batch.weight,
        )
        vectors = QVectors(self.flat, self.target, self.grad, self.first, self.second)
        before = self.num_steps
        self.num_steps = learn(
            self._shape, vectors, rows, settings, before, self._scratches[key], errors, table
        )
        return StepStats(table, errors, len(table) - (self.num_steps - before))

    def _make_scratch(self, batch_size: int, double: bool) -> QScratch:
        def real(*shape: int) -> Array:
            return np.empty(shape, np.float32)

        rows, num_actions = batch_size * (1 + double), self._spec.num_outputs
        ahead = batch_size * max(1, _ROWS_AHEAD // batch_size)
        return QScratch(
            x=real(rows, self._spec.num_flat),
            outputs=real(max(rows, ahead) * self._width),
            d_outputs=real(batch_size * self._width),
            spare=real(batch_size * max(self._spec.network_arch)),
            q=real(rows, num_actions),
            next_values=real(ahead, num_actions),
        )

    def differentiate(self, batch: Transitions, settings: QSettings) -> Evidence:
        before = self.snapshot()
        settings = settings._replace(batch_size=len(batch.action), learning_rate=0.0, tau=1.0)
        stats = self.learn(batch, settings, np.random.default_rng)
        self.restore(before)
        return make_evidence(stats, self.gradient(self.grad))

    def rescale_values(self, factor: float, shift: float = 0.0) -> None:
        for vector in (self.flat, self.target):
            for name, view in self.layout.views(vector).items():
                if scale_power(name, self._heads) == 1:
                    view *= factor
        self.rescale(lambda name: scale_power(name, self._heads), factor)

    def copy_to_target(self) -> None:
        self.target[:] = self.flat


def compile_kernels() -> None:
    """Compile the arithmetic, or load it from numba's cache on disk. It takes about 10 s once per
    installation and machine, then a quarter of a second."""
    action = ActionSpec("categories", (), "int64", nvec=(2,), start=(0,))
    spec = PolicySpec((LeafSpec("", (1,), "float32", "vector"),), action, (1,), form="values")
    layout = Layout(layer_shapes(_list_layers(spec)))
    kernel = CompiledQKernel(spec, layout.views(np.zeros(layout.size, np.float32)))
    inputs, zeros = Encoded(np.zeros((1, 1), np.float32), ()), np.zeros(1, np.float32)
    batch = Transitions(inputs, np.zeros((1, 1), np.int64), zeros, zeros, inputs, None, None)
    kernel.differentiate(batch, QSettings(1, 0.0, 1.0, True, True, 1.0))


def is_compiling() -> bool:
    """Whether `compile_kernels` found no cache on disk that it could load."""
    return bool(learn.stats.cache_misses)  # type: ignore[attr-defined]
