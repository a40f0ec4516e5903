"""The compiled kernel for MLPs on the CPU: forward, hand-written backward and Adam on flat vectors.

Several minibatches are learned from in one compiled call, so that only arithmetic is left. With several
threads, each learns from a fixed part of every minibatch. It agrees with the torch kernel within rounding;
bits depend on the number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.ppo import compiled_loss, compiled_steps
from mission_gym.algorithms.ppo.compiled_loss import ActionScratch
from mission_gym.algorithms.ppo.compiled_steps import SampleArrays, Scratch, Shape, evaluate, learn
from mission_gym.algorithms.ppo.kernel import COLUMNS, Samples, make_evidence
from mission_gym.algorithms.ppo.section import PpoSection, StepSettings
from mission_gym.data import Array, LeafSpec
from mission_gym.learner.blocks import SequenceMemory
from mission_gym.learner.compiled_network import CompiledNetwork, Layout
from mission_gym.learner.mlp import (
    LINEAR,
    SCALAR,
    Dense,
    layer_shapes,
    make_mlp,
    total_width,
)
from mission_gym.learner.ranks import Ranks, Vectors
from mission_gym.learner.verify import Evidence
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.team import Team

_EVALUATE_ROWS = 2048  # rows per pass over a block: activations stay in the cache
_CALL_S = 0.01  # the longest wait of a stop request for compiled code, unless one minibatch takes longer
_NONE = np.empty(0, np.float32)
_NO_MASK = np.empty((0, 0), np.bool_)
_CRITIC = "critic."
_SOURCES = [Path(str(module.__file__)) for module in (compiled_steps, compiled_loss)]


def _list_layers(spec: PolicySpec) -> list[Dense]:
    """Actor and critic in turns, then their heads; the critic may read more inputs."""
    layers: list[Dense] = []
    sources, widths = (
        {"actor": -1, "critic": -2},
        {"actor": spec.actor_inputs.num_flat, "critic": spec.num_flat},
    )
    for number, width in enumerate(spec.network_arch):
        for name in ("actor", "critic"):
            layers.append(Dense(f"{name}.{2 * number}", sources[name], widths[name], width))
            sources[name], widths[name] = len(layers) - 1, width
    number = 2 * len(spec.network_arch)
    layers.append(Dense(f"actor.{number}", sources["actor"], widths["actor"], spec.num_outputs, LINEAR))
    layers.append(Dense(f"critic.{number}", sources["critic"], widths["critic"], 1, SCALAR))
    return layers


def _lay_out(spec: PolicySpec, layers: list[Dense]) -> Layout:
    """In the flat vector the critic precedes the actor, because each is clipped by its own norm."""
    shapes = layer_shapes(sorted(layers, key=lambda layer: not layer.name.startswith(_CRITIC)))
    return Layout(shapes | ({"log_std": (spec.action.num_reals,)} if spec.action.num_reals else {}))


class CompiledKernel(CompiledNetwork):
    """See `kernel.Kernel`. initial: the torch form's draw."""

    columns: tuple[str, ...] = COLUMNS
    is_low_precision = defers_stats = False

    def __init__(self, spec: PolicySpec, initial: dict[str, Array], threads: int = 1) -> None:
        layers = _list_layers(spec)
        layout = _lay_out(spec, layers)
        super().__init__(layout, initial, is_acting=lambda name: not name.startswith(_CRITIC))
        self.grads = np.zeros((threads, layout.size), np.float32)
        views, head = layout.views(self.flat), layers[-1].name
        self._critic_head = views[f"{head}.weight"], views[f"{head}.bias"]
        self._spec, self._threads, self._width = spec, threads, total_width(layers)
        self._shape = Shape(
            mlp=make_mlp(layers, layout, spec.activation, _SOURCES),
            num_actor_flat=spec.actor_inputs.num_flat,
            edges=np.cumsum([0, *spec.action.nvec]).astype(np.int64),
            num_outputs=spec.num_outputs,
            num_reals=spec.action.num_reals,
            num_critic=min(start for name, start in layout.starts.items() if not name.startswith(_CRITIC)),
        )
        self._team = Team(threads - 1, "replica")
        self._scratches: dict[tuple[int, int, int], Scratch] = {}  # by thread and sizes, which repeat
        self._minibatches = 1  # of a call

    def _scratch(self, rank: int, num_rows: int, mask_size: int) -> Scratch:
        key = (rank, num_rows, mask_size)
        if key not in self._scratches:
            self._scratches[key] = self._make_scratch(num_rows, mask_size)
        return self._scratches[key]

    def _make_scratch(self, num_rows: int, mask_size: int) -> Scratch:
        def real(*shape: int) -> Array:
            return np.empty(shape, np.float32)

        spec, rows = self._spec, num_rows
        num_flat, num_actor_flat = spec.num_flat, self._shape.num_actor_flat
        mask = np.empty((rows if mask_size else 0, mask_size), np.bool_)
        batch = SampleArrays(
            flat=real(rows, num_flat),
            action=real(rows, spec.action.num_stored),
            mask=mask,
            weight=real(rows),
            log_prob=real(rows),
            advantage=real(rows),
            returns=real(rows),
            importance=_NONE,
        )
        outputs = [real(rows, spec.num_outputs) for _ in range(2)]
        return Scratch(
            batch=batch,
            actor_flat=batch.flat if num_actor_flat == num_flat else real(rows, num_actor_flat),
            outputs=real(rows * self._width),
            d_outputs=real(rows * self._width),
            spare=_NONE,  # no layer is the source of two others
            actions=ActionScratch(*outputs, *(real(rows) for _ in range(4))),
        )

    def evaluate(
        self,
        inputs: Encoded,
        action: Array,
        mask: Array | None,
        memory: SequenceMemory | None = None,
        *,
        exact: bool = False,
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

    def rescale_values(self, factor: float, shift: float = 0.0) -> None:
        weight, bias = self._critic_head
        weight *= np.float32(factor)
        bias[:] = factor * bias.astype(np.float64) + shift

    def load_samples(self, samples: Samples) -> None:
        ones = np.ones(len(samples.log_prob), np.float32)
        self._samples = SampleArrays(
            flat=samples.inputs.flat,
            action=np.asarray(samples.action, np.float32),
            mask=_NO_MASK if samples.mask is None else samples.mask,
            weight=ones if samples.weight is None else samples.weight,
            log_prob=samples.log_prob,
            advantage=samples.advantage,
            returns=samples.returns,
            importance=_NONE if samples.importance is None else samples.importance,
        )

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> Array | None:
        table = np.empty((len(order), len(COLUMNS)))
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
        vectors = Vectors(self.flat, self.first, self.second, self.grads)
        ranks = Ranks(np.zeros(1, np.int64), np.zeros((threads, len(COLUMNS) + 1)))
        shares = np.diff(np.arange(threads + 1) * size // threads).tolist()
        mask_size = self._samples.mask.shape[1]
        scratches = [self._scratch(rank, rows, mask_size) for rank, rows in enumerate(shares)]

        def work(rank: int) -> int:
            return learn(
                self._shape, vectors, self._samples, order, settings, self.num_steps, scratches[rank], rank,
                ranks, table,
            )  # fmt: skip

        # Each thread takes one task, because the tasks wait for each other; so nothing else may fail in them.
        self.num_steps = self._team.run([partial(work, rank) for rank in range(threads)])[0]

    def differentiate(self, samples: Samples, settings: StepSettings) -> Evidence:
        before, table = self.snapshot(), np.empty((1, len(COLUMNS)))
        self.load_samples(samples)
        self._learn(np.arange(len(samples.action))[None], settings._replace(learning_rate=0.0), table)
        self.restore(before)
        return make_evidence(table[0], COLUMNS, self.gradient(self.grads[0]))


def compile_kernels() -> None:
    """Compile the arithmetic, or load it from numba's cache on disk. It takes about 15 s once per
    installation and machine, then a quarter of a second."""
    action = ActionSpec("categories", (), "int64", nvec=(2,), start=(0,))
    spec = PolicySpec((LeafSpec("", (1,), "float32", "vector"),), action, (1,))
    layout = _lay_out(spec, _list_layers(spec))
    kernel = CompiledKernel(spec, layout.views(np.zeros(layout.size, np.float32)))
    inputs, actions, zeros = (
        Encoded(np.zeros((2, 1), np.float32), ()),
        np.zeros((2, 1)),
        np.zeros(2, np.float32),
    )
    kernel.evaluate(inputs, actions, None)
    kernel.load_samples(Samples(inputs, None, actions, zeros, zeros, zeros, zeros, None))
    settings = PpoSection.model_validate({}).step_settings(0, 1)._replace(learning_rate=0.0)
    kernel.epoch(np.arange(2)[None], settings, lambda: False)


def is_compiling() -> bool:
    """Whether `compile_kernels` found no cache on disk that it could load."""
    return bool(evaluate.stats.cache_misses or learn.stats.cache_misses)  # type: ignore[attr-defined]
