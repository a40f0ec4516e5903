"""What the rest of the product asks of an algorithm: a record for the table, and the learner it makes.

An algorithm is a folder below `algorithms/` with a record like this. Nobody asks for one by name: whoever
needs to know something of an algorithm is handed its record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mission_gym.clock import PhaseClock
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import AlgorithmSection, Config, Settled
from mission_gym.data import Array, Block, EnvSpec, Fact, Leaves, UpdateStats, Weights
from mission_gym.policy import PolicySpec
from mission_gym.store.metrics import Metric


class Learner(Protocol):
    """Learns from blocks. Its arrays by name are what a checkpoint keeps of it."""

    clock: PhaseClock
    version: int  # updates made
    step: int  # transitions learned from
    gradient_steps: int
    keeps_updates: bool  # an update can't be undone: a stop leaves it half made, and it goes on later
    has_extras: bool  # it keeps what is too large for every checkpoint

    @property
    def notes(self) -> list[str]:
        """What it could not do as planned on its device, in sentences."""

    def prime(self, obs: Leaves) -> None:
        """Start the observation statistics from the leaves [N, ...] of one short block."""

    def update(self, block: Block, stop: Callable[[], bool] = ...) -> UpdateStats | None:
        """Learn from a full block; None if a stop was asked for."""

    def undo(self) -> None:
        """Put everything back to the state before the last update, unless it keeps its updates."""

    def weights(self) -> Weights:
        """What collects the next block."""

    def behind(self) -> Weights | None:
        """The weights before the last update, None where they are not known."""

    def load_behind(self, arrays: dict[str, Array]) -> None:
        """Take the arrays of `behind` back, where a checkpoint kept them."""

    def arrays(self) -> dict[str, Array]:
        """What it goes on from: `policy/...`, `optimizer/...`, statistics, `counters` (version, step,
        gradient steps first)."""

    def load_arrays(self, arrays: dict[str, Array]) -> None: ...

    def adopt(self, arrays: dict[str, Array]) -> None:
        """As `load_arrays`, of a parent run whose environments and their number are not ours."""

    def lose_episode(self, env_id: int) -> None:
        """The running episode of an environment could not be brought back: its next step begins another."""

    def extras(self) -> dict[str, Array]:
        """What is too large for every checkpoint, and is saved with the last one alone; views."""

    def load_extras(self, arrays: dict[str, Array] | None) -> str:
        """Take them back, behind `load_arrays`; if they were not saved, what that costs, in a sentence."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The record of an algorithm. Torch is loaded by those functions alone that make learners.

    What has a default is true of an algorithm that has a torch kernel alone, learns in float32 and keeps
    nothing but its network.
    """

    name: str
    section: type[AlgorithmSection]
    metrics: tuple[Metric, ...]  # its own rows of the metrics stream
    layout: Callable[[Config, EnvSpec], PolicySpec]  # the policy that the config asks for
    make_learner: Callable[[Settled, EnvSpec], Learner]  # fresh weights, drawn from the run's seed

    # Facts for the plan.
    trace_decay: Callable[[Config], float]  # of a step's credit; a segment must see its horizon, 0: one step
    refuse_lag: Callable[[Settled], str]  # why a rollout of older weights would harm, empty if it does not
    describe: Callable[[Settled, EnvSpec], list[Fact]]  # its rows of the printed plan
    measure_update_s: Callable[[Learner, Settled, EnvSpec], float]  # seconds of learning a transition
    num_epochs: Callable[[Settled], int] = lambda config: 1
    # Of one row of a gradient step: two for each product of the pass forward, four for the one backward.
    flops_per_parameter: Callable[[Settled], float] = lambda config: 6.0
    fixed_batch: Callable[[Resolved], int | None] = lambda resolved: None  # rollouts must be a multiple of it
    held_bytes: Callable[[Config, EnvSpec], int] = lambda config, spec: 0  # beside blocks, network, optimizer
    explain_held: Callable[[Config, EnvSpec, int], str] = lambda config, spec, free_bytes: ""  # its misfit
    holds: str = "blocks"  # what memory it takes, in words
    overlaps_on_cores: bool = False  # beside updates where workers leave a core: its rollouts are short
    prepare_rehearsal: Callable[[Learner], None] = lambda learner: None  # learn from the first block on

    # The compiled kernel.
    has_twin: Callable[[Config, int], bool] = lambda config, threads: False  # it may learn with the threads
    # Why it is left out with so many threads, empty if it agrees with the loss.
    prove: Callable[[Config, EnvSpec, int], str] = lambda config, spec, threads: ""
    twin_has_threads: bool = False  # whether it shares its work among threads
    compiled: str = ""  # module with `compile_kernels` and `is_compiling`, to be called beside other work
    has_bf16: bool = False  # whether the torch kernel learns in that precision, too

    # What it means for the user.
    refuse: Callable[[Resolved, EnvSpec], list[str]] = lambda resolved, spec: []  # what it can't do here
    sampled_play_is_worse: bool = False  # by design: exploring is not part of what was learned
    notes_on_branch: Callable[[Settled], list[str]] = lambda config: []
