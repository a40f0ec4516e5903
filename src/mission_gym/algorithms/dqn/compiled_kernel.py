"""The compiled kernel of DQN for MLPs on the CPU: forward, hand-written backward and Adam on flat vectors.

All gradient steps of a draw are made in one call, so that nothing but arithmetic is left. It agrees with the
torch kernel within rounding.
"""

from __future__ import annotations

import numpy as np

from mission_gym.algorithms.dqn.compiled_steps import learn
from mission_gym.algorithms.dqn.kernel import NUM_STATS, Batches, NoiseOf, QSettings, QStats, make_evidence
from mission_gym.algorithms.dqn.network import Net, Scratch, Transitions, make_scratch, make_shape
from mission_gym.data import ActionSpec, Array, LeafSpec
from mission_gym.learner.network import CompiledNetwork, copy_views, fill_views
from mission_gym.learner.proof import Evidence
from mission_gym.policy import Encoded, PolicySpec, QSpec

_NONE = np.empty(0, np.float32)
_NO_MASK = np.empty((0, 0), np.bool_)


class CompiledQKernel(CompiledNetwork):
    """See `kernel.QKernel`; no noisy layers. Begins with the arrays it is given, the torch form's draw."""

    def __init__(self, spec: PolicySpec, num_flat: int, initial: dict[str, Array]) -> None:
        assert spec.q is not None
        assert spec.q.noisy_sigma is None, "noisy layers are the torch kernel's"
        self.net, self.target_net, self.grad, self.first, self.second = (
            Net(spec, num_flat) for _ in range(5)
        )
        super().__init__(self.net, self.first, self.second, initial)
        self._spec, self._num_flat = spec, num_flat
        self._shape = make_shape(spec, num_flat)
        self._vectors = (
            self.net.flat, self.target_net.flat, self.grad.flat, self.first.flat, self.second.flat,
        )  # fmt: skip
        self._scratches: dict[tuple[int, bool], Scratch] = {}  # by sizes: few, as they repeat
        self.copy_to_target()

    def learn(self, batches: Batches, settings: QSettings, noise_of: NoiseOf) -> QStats:
        num = len(batches.action)
        table, errors = np.empty((num // settings.batch_size, NUM_STATS)), np.empty(num, np.float32)
        key = (settings.batch_size, settings.double)
        if key not in self._scratches:
            self._scratches[key] = make_scratch(self._spec, self._num_flat, *key)
        transitions = Transitions(
            flat=batches.inputs.flat,
            next_flat=batches.next_inputs.flat,
            action=batches.action,
            reward=batches.reward,
            discount=batches.discount,
            next_mask=_NO_MASK if batches.next_mask is None else batches.next_mask,
            weight=_NONE if batches.weight is None else batches.weight,
        )
        before = self.num_steps
        self.num_steps = learn(
            self._shape, self._vectors, transitions, settings, before, self._scratches[key], errors, table
        )
        return QStats(table, errors, len(table) - (self.num_steps - before))

    def differentiate(self, batches: Batches, settings: QSettings) -> Evidence:
        before = [array.copy() for array in self._vectors]
        num_steps = self.num_steps
        settings = settings._replace(batch_size=len(batches.action), learning_rate=0.0, tau=1.0)
        stats = self.learn(batches, settings, np.random.default_rng)
        gradient = copy_views(self.grad)
        for array, kept in zip(self._vectors, before, strict=True):
            array[:] = kept
        self.num_steps = num_steps
        return make_evidence(stats, gradient)

    def copy_to_target(self) -> None:
        self.target_net.flat[:] = self.net.flat

    def target(self) -> dict[str, Array]:
        return copy_views(self.target_net)

    def load_target(self, arrays: dict[str, Array]) -> None:
        fill_views(self.target_net, arrays)


def compile_kernels() -> None:
    """Compile the arithmetic, or load it from numba's cache on disk: once per installation and machine it
    takes about 10 s, then a quarter of a second."""
    action = ActionSpec("categories", (), "int64", nvec=(2,), start=(0,))
    spec = PolicySpec((LeafSpec("", (1,), "float32", "vector"),), action, (1,), q=QSpec())
    kernel = CompiledQKernel(spec, 1, Net(spec, 1).named())
    inputs, zeros = Encoded(np.zeros((1, 1), np.float32), ()), np.zeros(1, np.float32)
    batches = Batches(inputs, np.zeros(1, np.int64), zeros, zeros, inputs, None, None)
    kernel.differentiate(batches, QSettings(1, 0.0, 1.0, True, True, 1.0))


def is_compiling() -> bool:
    """Whether `compile_kernels` found no cache on disk that it could load."""
    return bool(learn.stats.cache_misses)  # type: ignore[attr-defined]
