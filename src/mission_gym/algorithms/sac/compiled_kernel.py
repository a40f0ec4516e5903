"""The compiled kernel of SAC for MLPs on the CPU: forward, hand-written backward and Adam on flat vectors.

All gradient steps of a draw run in one call, so that only arithmetic is left. With several threads, each
learns from a fixed part of every minibatch. It agrees with the torch kernel within rounding; bits depend on
the number of threads.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.sac import compiled_loss, compiled_steps
from mission_gym.algorithms.sac import kernel as contract
from mission_gym.algorithms.sac.compiled_loss import Draw
from mission_gym.algorithms.sac.compiled_steps import (
    NUM_SUMS,
    SacRows,
    SacScratch,
    SacShape,
    SacStepSettings,
    SacVectors,
    learn,
)
from mission_gym.algorithms.sac.kernel import (
    ACTOR_LOSS,
    CRITIC,
    CRITIC_LOSS,
    ENTROPY,
    ERROR,
    GRAD_NORM,
    NUM_CRITICS,
    NUM_STATS,
    TARGET,
    TEMPERATURE,
    VALUE,
    SacSettings,
    head_power,
)
from mission_gym.data import Array, LeafSpec
from mission_gym.learner.compiled_network import CompiledNetwork, Layout
from mission_gym.learner.mlp import (
    HIDDEN,
    LINEAR,
    NORMALIZED,
    SCALAR,
    Dense,
    layer_shapes,
    make_mlp,
    total_width,
)
from mission_gym.learner.off_policy_learner import StepStats, Transitions
from mission_gym.learner.ranks import Ranks, Vectors
from mission_gym.learner.verify import Evidence
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.team import Team

_NONE = np.empty(0, np.float32)
_SOURCES = [Path(str(module.__file__)) for module in (compiled_steps, compiled_loss, contract)]


def _list_actor(spec: PolicySpec) -> list[Dense]:
    """The layers of the actor."""
    *widths, last = (spec.actor_inputs.num_flat, *spec.network_arch)
    layers = [Dense(f"actor.{2 * i}", i - 1, *pair) for i, pair in enumerate(pairwise((*widths, last)))]
    return [*layers, Dense(f"actor.{2 * len(layers)}", len(layers) - 1, last, spec.num_outputs, LINEAR)]


def _list_critics(spec: PolicySpec, settings: SacSettings) -> list[Dense]:
    """The layers of the critics in turns, then their heads."""
    widths = (spec.num_flat + spec.action.num_reals, *spec.network_arch, settings.num_quantiles)
    kinds = [NORMALIZED if settings.layer_norm else HIDDEN] * len(spec.network_arch)
    kinds.append(SCALAR if settings.num_quantiles == 1 else LINEAR)
    layers: list[Dense] = []
    for number, (kind, (num_in, num_out)) in enumerate(zip(kinds, pairwise(widths), strict=True)):
        name = f"layers.{number}" if number < len(spec.network_arch) else "head"
        for copy in range(NUM_CRITICS):
            source = len(layers) - NUM_CRITICS if number else -1
            layers.append(Dense(name, source, num_in, num_out, kind, copy))
    return layers


def _stack_shapes(layers: list[Dense]) -> dict[str, tuple[int, ...]]:
    """The shapes of the critics' arrays, each a stack of one for each critic."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in layer_shapes(layers).items():
        shapes[name] = (NUM_CRITICS, *((1, *shape) if len(shape) == 1 else shape))
    return shapes


class CompiledSacKernel:
    """See `kernel.SacKernel`. initial: the torch form's draw; None for zeros."""

    def __init__(
        self, spec: PolicySpec, initial: dict[str, Array] | None, settings: SacSettings, threads: int = 1
    ) -> None:
        actor, critics = _list_actor(spec), _list_critics(spec, settings)
        layouts = Layout(layer_shapes(actor)), Layout(_stack_shapes(critics)), Layout({"log_alpha": (1,)})
        self.actor = CompiledNetwork(layouts[0], initial)
        self.critics = CompiledNetwork(layouts[1], initial, part=CRITIC, frozen=(TARGET,))
        self.temperature = CompiledNetwork(layouts[2], initial, part=TEMPERATURE)
        self._networks = (self.actor, self.critics, self.temperature)
        self._vectors = tuple(
            Vectors(each.flat, each.first, each.second, np.zeros((threads, each.flat.size), np.float32))
            for each in self._networks
        )
        self.notes: list[str] = []
        self.settings, self._spec, self._threads = settings, spec, threads
        self._shape = SacShape(
            make_mlp(actor, layouts[0], spec.activation, _SOURCES),
            make_mlp(critics, layouts[1], spec.activation, _SOURCES),
            settings.num_quantiles,
        )
        self._widths = total_width(actor), total_width(critics)
        self._team = Team(threads - 1, "replica")
        self._scratches: dict[tuple[int, int], SacScratch] = {}  # by thread and rows, which repeat

    def learn(self, batch: Transitions, noise: Array, learning_rate: float, first: int) -> StepStats:
        return self._learn(batch, noise, learning_rate, first, self.settings.tau)

    def _learn(
        self, batch: Transitions, noise: Array, learning_rate: float, first: int, tau: float
    ) -> StepStats:
        settings, threads, size = self.settings, self._threads, noise.shape[2]
        table, errors = np.empty((len(noise), NUM_STATS)), np.empty(len(batch.action), np.float32)
        goal = math.nan if settings.target_entropy is None else settings.target_entropy
        steps = SacStepSettings(
            learning_rate, tau, settings.policy_delay, first, settings.num_dropped, float(goal)
        )
        rows = SacRows(
            flat=batch.inputs.flat,
            next_flat=batch.next_inputs.flat,
            action=batch.action,
            reward=batch.reward,
            discount=batch.discount,
            weight=_NONE if batch.weight is None else batch.weight,
            noise=noise,
        )
        ranks = Ranks(np.zeros(1, np.int64), np.zeros((threads, NUM_SUMS)))
        counts = np.array([each.num_steps for each in self._networks])
        shares = np.diff(np.arange(threads + 1) * size // threads).tolist()
        scratches = [self._scratch(rank, share) for rank, share in enumerate(shares)]

        actor, critic, temperature = self._vectors
        vectors = SacVectors(actor, critic, temperature, self.critics.frozen[TARGET])

        def work(rank: int) -> tuple[int, int, int]:
            return learn(
                self._shape, vectors, rows, steps, counts, scratches[rank], rank, ranks, errors, table
            )

        # Each thread takes one task, because the tasks wait for each other; so nothing else may fail in them.
        made = self._team.run([partial(work, rank) for rank in range(threads)])[0]
        for network, number in zip(self._networks, made, strict=True):
            network.num_steps = number
        return StepStats(table, errors, int(np.count_nonzero(~np.isfinite(table[:, GRAD_NORM]))))

    def _scratch(self, rank: int, num_rows: int) -> SacScratch:
        if (rank, num_rows) not in self._scratches:
            self._scratches[rank, num_rows] = self._make_scratch(num_rows)
        return self._scratches[rank, num_rows]

    def _make_scratch(self, num_rows: int) -> SacScratch:
        def real(*shape: int) -> Array:
            return np.empty(shape, np.float32)

        spec, (actor, critics) = self._spec, self._widths
        num_reals, num_actor = spec.action.num_reals, spec.actor_inputs.num_flat
        draws = [Draw(real(num_rows), real(num_rows, num_reals), real(num_rows, num_reals)) for _ in range(2)]
        return SacScratch(
            actor_x=real(2 * num_rows, num_actor),
            actor_outputs=real(2 * num_rows * actor),
            actor_d_outputs=real(num_rows * actor),
            critic_x=real(num_rows, spec.num_flat + num_reals),
            critic_outputs=real(num_rows * critics),
            critic_d_outputs=real(num_rows * critics),
            spare=real(max(num_rows * num_reals, *spec.network_arch, 1)),
            draw=draws[0],
            next_draw=draws[1],
            action=real(num_rows, num_reals),
            d_action=real(num_rows, num_reals),
            target=real(num_rows, NUM_CRITICS * self.settings.num_quantiles),
        )

    def differentiate(self, batch: Transitions, noise: Array) -> Evidence:
        before = self.snapshot()
        row = self._learn(batch, noise[None], 0.0, 0, 0.0).table[0]
        self.restore(before)
        columns = {
            "critic loss": CRITIC_LOSS, "mean value": VALUE, "mean error": ERROR, "actor loss": ACTOR_LOSS,
            "entropy": ENTROPY,
        }  # fmt: skip
        gradient: dict[str, Array] = {}
        for network, vectors in zip(self._networks, self._vectors, strict=True):
            if network is not self.temperature or self.settings.target_entropy is not None:
                gradient |= network.gradient(vectors.grads[0])
        return Evidence({name: float(row[column]) for name, column in columns.items()}, gradient)

    def rescale_values(self, factor: float, shift: float = 0.0) -> None:
        for flat in (self.critics.flat, self.critics.frozen[TARGET]):
            for name, view in self.critics.layout.views(flat).items():
                if head_power(name) == 1:
                    view *= np.float32(factor)
        # The gradient of the actor grows by the factor; the temperature has the unit of values.
        self.temperature.flat += np.float32(math.log(factor))
        self.critics.rescale(head_power, factor)
        self.actor.rescale(lambda name: 1, factor)

    def acting(self) -> dict[str, Array]:
        return self.actor.parameters()

    def training(self) -> dict[str, Array]:
        return self.critics.parameters() | self.temperature.parameters()

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters by name."""
        return self.acting() | self.training()

    def load_parameters(self, arrays: dict[str, Array]) -> None:
        for network in self._networks:
            network.load_parameters(arrays)

    def optimizer(self) -> dict[str, Array]:
        return {name: array for network in self._networks for name, array in network.optimizer().items()}

    def load_optimizer(self, arrays: dict[str, Array]) -> None:
        for network in self._networks:
            network.load_optimizer(arrays)

    def snapshot(self) -> list[tuple[list[Array], int]]:
        return [network.snapshot() for network in self._networks]

    def restore(self, snapshot: list[tuple[list[Array], int]]) -> None:
        for network, saved in zip(self._networks, snapshot, strict=True):
            network.restore(saved)

    def snapshot_acting(self, snapshot: list[tuple[list[Array], int]]) -> dict[str, Array]:
        return self.actor.snapshot_acting(snapshot[0])


def compile_kernels() -> None:
    """Compile the arithmetic, or load it from numba's cache on disk. It takes about 20 s once per
    installation and machine, then half a second."""
    action = ActionSpec("box", (1,), "float32", low=(-1.0,), high=(1.0,))
    leaf = LeafSpec("", (1,), "float32", "vector")
    spec = PolicySpec((leaf,), action, (1,), form="squashed", outputs_per_real=2)
    settings = SacSettings(1, 0.0, 1, -1.0, 0, 1, layer_norm=False, temperature=1.0)
    kernel = CompiledSacKernel(spec, None, settings)
    inputs, zeros = Encoded(np.zeros((1, 1), np.float32), ()), np.zeros(1, np.float32)
    batch = Transitions(inputs, np.zeros((1, 1), np.float32), zeros, zeros, inputs, None, None)
    kernel.differentiate(batch, np.zeros((2, 1, 1), np.float32))


def is_compiling() -> bool:
    """Whether `compile_kernels` found no cache on disk that it could load."""
    return bool(learn.stats.cache_misses)  # type: ignore[attr-defined]
