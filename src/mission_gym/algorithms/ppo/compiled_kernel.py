"""The compiled kernel for MLPs on the CPU: forward, hand-written backward and Adam on flat vectors.

Minibatches are learned from in compiled code, several in one call, so that nothing but arithmetic is left.
With several threads, each learns from a fixed part of every minibatch. It agrees with the torch kernel within
rounding; bits depend on the number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from mission_gym.algorithms.ppo.compiled_steps import evaluate, learn
from mission_gym.algorithms.ppo.kernel import NUM_STATS, Samples, make_evidence
from mission_gym.algorithms.ppo.network import Batch, Net, Scratch, make_scratch, make_shape
from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.data import ActionSpec, Array, LeafSpec
from mission_gym.learner.network import CompiledNetwork, copy_views
from mission_gym.learner.proof import Evidence
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.team import Team

_EVALUATE_ROWS = 2048  # rows per pass over a block: activations stay in the cache
_CALL_S = 0.01  # how long a stop request may wait for compiled code, if a minibatch takes no longer
_NONE = np.empty(0, np.float32)
_NO_MASK = np.empty((0, 0), np.bool_)


class CompiledKernel(CompiledNetwork):
    """See `kernel.Kernel`. Begins with the arrays it is given: the same draw as the torch form's."""

    is_coarse = reads_late = False

    def __init__(self, spec: PolicySpec, initial: dict[str, Array], threads: int = 1) -> None:
        net, first, second = (Net(spec) for _ in range(3))
        self.flat, self.first, self.second = net.flat, first.flat, second.flat
        self.grads = np.zeros((threads, len(self.flat)), np.float32)
        super().__init__(net, first, second, initial)
        views, last = net.named(), f"critic.{2 * len(spec.network_arch)}"
        self._critic_head = views[f"{last}.weight"], views[f"{last}.bias"]
        self._spec, self._threads = spec, threads
        self._shape = make_shape(spec)
        self._team = Team(threads - 1, "replica")
        self._scratches: dict[tuple[int, int, int], Scratch] = {}  # by thread and sizes: few, as they repeat
        self._minibatches = 1  # of a call

    def _scratch(self, rank: int, num_rows: int, mask_size: int) -> Scratch:
        key = (rank, num_rows, mask_size)
        if key not in self._scratches:
            self._scratches[key] = make_scratch(self._spec, num_rows, mask_size)
        return self._scratches[key]

    def evaluate(
        self, inputs: Encoded, action: Array, mask: Array | None, *, exact: bool = False
    ) -> tuple[Array, Array]:
        flat, action = inputs.flat, np.asarray(action, np.float32)
        mask = _NO_MASK if mask is None else mask
        log_prob, values = np.empty(len(action), np.float32), np.empty(len(flat), np.float32)

        def work(rank: int) -> None:
            for start in range(rank * _EVALUATE_ROWS, len(flat), self._threads * _EVALUATE_ROWS):
                rows = slice(start, start + _EVALUATE_ROWS)
                scratch = self._scratch(rank, len(values[rows]), 0)
                out = (log_prob[rows], values[rows])
                evaluate(self._shape, self.flat, flat[rows], action[rows], mask[rows], scratch, *out)

        self._team.run([partial(work, rank) for rank in range(self._threads)])
        return log_prob, values

    def rescale_values(self, factor: float, shift: float) -> None:
        weight, bias = self._critic_head
        weight *= np.float32(factor)
        bias[:] = factor * bias.astype(np.float64) + shift

    def load_samples(self, samples: Samples) -> None:
        ones = np.ones(len(samples.log_prob), np.float32)
        self._samples = Batch(
            flat=samples.inputs.flat,
            action=np.asarray(samples.action, np.float32),
            mask=_NO_MASK if samples.mask is None else samples.mask,
            weight=ones if samples.weight is None else samples.weight,
            log_prob=samples.log_prob,
            advantage=samples.advantage,
            returns=samples.returns,
        )
        self._importance = _NONE if samples.importance is None else samples.importance

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> Array | None:
        table = np.empty((len(order), NUM_STATS))
        made = 0
        while made < len(order):
            if stop():
                return None
            part = slice(made, made + self._minibatches)
            begun = time.perf_counter()
            self._learn(order[part], settings, table[part])
            made += self._minibatches
            if time.perf_counter() - begun < 0.5 * _CALL_S:
                self._minibatches *= 2
        return table

    def read(self, tables: list[Array]) -> list[Array]:
        return tables

    def _learn(self, order: Array, settings: StepSettings, table: Array) -> None:
        """A gradient step for each row of `order`."""
        threads, size = self._threads, order.shape[1]
        vectors = (self.flat, self.first, self.second)
        sums, counter = np.zeros((threads, NUM_STATS)), np.zeros(1, np.int64)
        shares = np.diff(np.arange(threads + 1) * size // threads).tolist()
        scratches = [
            self._scratch(rank, rows, self._samples.mask.shape[1]) for rank, rows in enumerate(shares)
        ]

        def work(rank: int) -> int:
            return learn(
                self._shape, vectors, self.grads, self._samples, self._importance, order, settings,
                self.num_steps, scratches[rank], rank, counter, sums, table,
            )  # fmt: skip

        # Each thread takes one task, as they wait for each other within it: so nothing else may fail there.
        self.num_steps = self._team.run([partial(work, rank) for rank in range(threads)])[0]

    def differentiate(self, samples: Samples, settings: StepSettings) -> Evidence:
        before = [array.copy() for array in (self.flat, self.first, self.second)]
        num_steps, table = self.num_steps, np.empty((1, NUM_STATS))
        self.load_samples(samples)
        self._learn(np.arange(len(samples.action))[None], settings._replace(learning_rate=0.0), table)
        for array, kept in zip((self.flat, self.first, self.second), before, strict=True):
            array[:] = kept
        self.num_steps = num_steps
        gradient = Net(self._spec, self.grads[0])
        return make_evidence(table[0], settings, copy_views(gradient))


def compile_kernels() -> None:
    """Compile the arithmetic, or load it from numba's cache on disk: once per installation and machine it
    takes about 15 s, then a quarter of a second."""
    action = ActionSpec("categories", (), "int64", nvec=(2,), start=(0,))
    spec = PolicySpec((LeafSpec("", (1,), "float32", "vector"),), action, (1,))
    kernel = CompiledKernel(spec, Net(spec).named())
    inputs, actions, zeros = (
        Encoded(np.zeros((2, 1), np.float32), ()),
        np.zeros((2, 1)),
        np.zeros(2, np.float32),
    )
    kernel.evaluate(inputs, actions, None)
    kernel.load_samples(Samples(inputs, None, actions, zeros, zeros, zeros, zeros, None))
    kernel.epoch(np.arange(2)[None], StepSettings(0.0, 0.2, 0.0, 0.5, 0.5, True), lambda: False)


def is_compiling() -> bool:
    """Whether `compile_kernels` found no cache on disk that it could load."""
    return bool(evaluate.stats.cache_misses or learn.stats.cache_misses)  # type: ignore[attr-defined]
