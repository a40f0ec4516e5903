"""What the rest of the product asks of an algorithm: a record for the table, and the learner it makes.

An algorithm is a folder below `algorithms/` with a record like this, a metrics.yaml and a module `build` with
`make_learner`, and `prove` where it has a compiled kernel: it loads torch. Nobody asks for an algorithm by
name: whoever needs to know something of one is handed its record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from mission_gym.clock import PhaseClock
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import AlgorithmSection, Config, Settled
from mission_gym.data import Array, Block, EnvSpec, Fact, Leaves, UpdateStats, Weights
from mission_gym.learner.blocks import prime_encoder, with_prefix
from mission_gym.learner.network import NetworkKernel
from mission_gym.policy import Encoder, PolicySpec
from mission_gym.store.metrics import Metric, read_metrics


class Learner(ABC):
    """Learns from blocks. Its arrays by name are what a checkpoint keeps of it."""

    kernel: NetworkKernel
    keeps_updates = False  # an update can't be undone: a stop leaves it half made, and it goes on later
    has_extras = False  # it keeps what is too large for every checkpoint

    def __init__(self, spec: PolicySpec, seed: int) -> None:
        self.seed = seed
        self.clock = PhaseClock("learner")
        self.version = 0  # updates made
        self.step = 0  # transitions learned from
        self.gradient_steps = 0
        self.encoder = Encoder(spec.leaves, spec.normalize_obs, spec.critic_leaves)

    def take_notes(self) -> list[str]:
        """What it could not do as planned on its device, in sentences, since this was last asked."""
        notes, self.kernel.notes = self.kernel.notes, []
        return notes

    def prime(self, obs: Leaves) -> None:
        """Start the observation statistics, which are of flat leaves, from those of one short block."""
        prime_encoder(self.encoder, obs)

    @abstractmethod
    def update(self, block: Block, stop: Callable[[], bool] = lambda: False) -> UpdateStats | None:
        """Learn from a full block; None if a stop was asked for."""

    @abstractmethod
    def undo(self) -> None:
        """Put everything back to the state before the last update, unless it keeps its updates."""

    @abstractmethod
    def weights(self) -> Weights:
        """What collects the next block."""

    @abstractmethod
    def previous_weights(self) -> Weights | None:
        """The weights before the last update, None where they are not known."""

    @abstractmethod
    def load_previous_weights(self, arrays: dict[str, Array]) -> None:
        """Take the arrays of `behind` back, where a checkpoint kept them."""

    def policy(self) -> dict[str, Array]:
        """What acting needs: parameters and statistics."""
        normalizer = self.encoder.normalizer
        return self.kernel.parameters() | (normalizer.arrays() if normalizer is not None else {})

    def arrays(self) -> dict[str, Array]:
        """What it goes on from: `policy/...`, `optimizer/...`, statistics, `counters` (version, step,
        gradient steps first)."""
        arrays = {f"policy/{name}": array for name, array in self.policy().items()}
        arrays |= {f"optimizer/{name}": array for name, array in self.kernel.optimizer().items()}
        return arrays | {"counters": np.array([self.version, self.step, self.gradient_steps], np.int64)}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        """Take back what `arrays` gave."""
        policy = with_prefix(arrays, "policy/")
        self.kernel.load_parameters(policy)
        self.kernel.load_optimizer(with_prefix(arrays, "optimizer/"))
        if self.encoder.normalizer is not None:
            self.encoder.normalizer.load(policy)
        self.version, self.step, self.gradient_steps = (int(x) for x in arrays["counters"][:3])

    def adopt(self, arrays: dict[str, Array]) -> None:
        """As `load_arrays`, of a parent run whose environments and their number are not ours."""
        self.load_arrays(arrays)

    def extras(self) -> dict[str, Array]:
        """What is too large for every checkpoint, and is saved with the last one alone; views."""
        return {}

    def load_extras(self, arrays: dict[str, Array] | None) -> str:
        """Take them back, behind `load_arrays`; if they were not saved, what that costs, in a sentence."""
        return ""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The record of an algorithm. Torch is loaded by those functions alone that make learners.

    What has a default is true of an algorithm that has a torch kernel alone, learns in float32 and keeps
    nothing but its network.
    """

    name: str
    section: type[AlgorithmSection]
    layout: Callable[[Config, EnvSpec], PolicySpec]  # the policy that the config asks for

    # Facts for the plan.
    trace_decay: Callable[[Config], float]  # of a step's credit; a segment must see its horizon, 0: one step
    refuse_lag: Callable[[Settled], str]  # why a rollout of older weights would harm, empty if it does not
    describe: Callable[[Settled, EnvSpec], list[Fact]]  # its rows of the printed plan
    measure_update_s: Callable[[Learner, Settled, EnvSpec], float]  # seconds of learning a transition
    num_epochs: Callable[[Settled], int] = lambda config: 1
    # Of one row of a gradient step: two for each product of the pass forward, four for the one backward.
    flops_per_parameter: Callable[[Settled], float] = lambda config: 6.0
    fixed_batch: Callable[[Resolved], int | None] = lambda resolved: None  # rollouts must be a multiple of it
    minibatch: Callable[[Settled], int | None] = lambda config: None  # its rows, where they divide a rollout
    held_bytes: Callable[[Config, EnvSpec], int] = lambda config, spec: 0  # beside blocks, network, optimizer
    explain_held: Callable[[Config, EnvSpec, int], str] = lambda config, spec, free_bytes: ""  # its misfit
    holds: str = "blocks"  # what memory it takes, in words
    overlaps_on_cores: bool = False  # beside updates where workers leave a core: its rollouts are short
    prepare_rehearsal: Callable[[Learner], None] = lambda learner: None  # learn from the first block on

    # The compiled kernel.
    has_compiled_kernel: Callable[[Config, int], bool] = lambda config, threads: (
        False
    )  # it may learn with the threads
    compiled_kernel_has_threads: bool = False  # whether it shares its work among threads
    compiled: str = ""  # module with `compile_kernels` and `is_compiling`, to be called beside other work
    has_bf16: bool = False  # whether the torch kernel learns in that precision, too

    # What it means for the user.
    adapt_actions: Callable[[EnvSpec], EnvSpec] = lambda spec: (
        spec
    )  # the environment with actions as it chooses them
    refuse: Callable[[Resolved, EnvSpec], list[str]] = lambda resolved, spec: []  # what it can't do here
    sampled_play_is_worse: bool = False  # by design: exploring is not part of what was learned
    notes_on_branch: Callable[[Settled], list[str]] = lambda config: []

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Its own rows of the metrics stream."""
        return read_metrics(Path(str(import_module(self._folder).__file__)).with_name("metrics.yaml"))

    def make_learner(self, config: Settled, spec: EnvSpec) -> Learner:
        """A learner with fresh weights, drawn from the run's seed."""
        learner: Learner = import_module(f"{self._folder}.build").make_learner(config, spec)
        return learner

    def verify_compiled_kernel(self, config: Config, spec: EnvSpec, threads: int) -> str:
        """Why the compiled kernel is left out with so many threads, empty if it agrees with the loss."""
        return str(import_module(f"{self._folder}.build").verify_compiled_kernel(config, spec, threads))

    def verify_device(self, config: Settled, spec: EnvSpec) -> str:
        """Why the device is left out, empty if it computes what the CPU does."""
        return str(import_module(f"{self._folder}.build").verify_device(config, spec))

    @property
    def _folder(self) -> str:
        return self.section.__module__.rpartition(".")[0]
