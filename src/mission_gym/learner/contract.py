"""The contract of an algorithm: its record, the learner that it makes, and the kernel that holds the
networks.

An algorithm is a folder below `algorithms/` with a subclass of `Algorithm` and a metrics.yaml, and a line in
the table. Other packages get the record and never ask for an algorithm by name. Only `make_learner`, the two
`verify` methods and `measure_update_s` load torch.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from mission_gym.clock import PhaseClock
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import AlgorithmSection, Config, Settled
from mission_gym.data import Array, Block, EnvSpec, Fact, Leaves, UpdateStats, Weights
from mission_gym.learner.blocks import with_prefix
from mission_gym.policy import Encoder, PolicySpec
from mission_gym.store.metrics import Metric, read_metrics


class NetworkKernel(Protocol):
    """The networks of a learner and their optimizers, as arrays by name.

    Names and shapes are those of the torch form, whichever kernel wrote them, so a checkpoint fits every
    kernel.
    """

    notes: list[str]  # problems on its device, in sentences

    def acting(self) -> dict[str, Array]:
        """Copies of the parameters that acting needs."""

    def training(self) -> dict[str, Array]:
        """Copies of the other parameters: critics, target networks, coefficients."""

    def load_parameters(self, arrays: dict[str, Array]) -> None:
        """Copy both kinds of parameters in."""

    def optimizer(self) -> dict[str, Array]:
        """Copies of the optimizers' arrays."""

    def load_optimizer(self, arrays: dict[str, Array]) -> None: ...

    def snapshot(self) -> Any:
        """The state of networks and optimizers; it stays on their device."""

    def restore(self, snapshot: Any) -> None: ...

    def snapshot_acting(self, snapshot: Any) -> dict[str, Array]:
        """The parameters that acting needed when the snapshot was taken."""

    def rescale_values(self, factor: float, shift: float = 0.0) -> None:
        """Change the value networks so that they return factor * v + shift instead of v."""


class Learner(ABC):
    """Learns from blocks. `arrays` is its state in a checkpoint."""

    kernel: NetworkKernel
    section: Any  # hyperparameters; scheduled ones may change between updates
    keeps_updates = False  # updates can't be undone; a stop leaves one unfinished, to be continued later
    has_extras = False  # has arrays that are too large for every checkpoint

    def __init__(self, spec: PolicySpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self.clock = PhaseClock("learner")
        self.version = 0  # number of updates
        self.step = 0  # transitions learned from
        self.gradient_steps = 0
        self.encoder = Encoder(spec.leaves, spec.normalize_obs, spec.critic_leaves)

    def take_notes(self) -> list[str]:
        """Problems on the kernel's device since the last call, in sentences."""
        notes, self.kernel.notes = self.kernel.notes, []
        return notes

    def prime(self, obs: Leaves) -> None:
        """Initialise the observation statistics with the flat leaves of a short block."""
        if self.encoder.normalizer is not None:
            self.encoder.normalizer.merge(self.encoder.flatten(obs))

    @abstractmethod
    def update(self, block: Block, stop: Callable[[], bool] = lambda: False) -> UpdateStats | None:
        """Learn from a full block; None if stopped."""

    @abstractmethod
    def undo(self) -> None:
        """Restore the state before the last update; not for learners that keep their updates."""

    @abstractmethod
    def weights(self) -> Weights:
        """The weights for collecting the next block."""

    @abstractmethod
    def previous_weights(self) -> Weights | None:
        """The weights before the last update, None if unknown."""

    @abstractmethod
    def load_previous_weights(self, weights: Weights) -> None:
        """Set `previous_weights`, from a checkpoint."""

    def exploration(self) -> float:
        """The probability of a random action at the present step."""
        return 0.0

    def policy(self) -> dict[str, Array]:
        """The arrays that acting needs: parameters and statistics."""
        normalizer = self.encoder.normalizer
        return self.kernel.acting() | (normalizer.arrays() if normalizer is not None else {})

    @property
    def num_weights(self) -> int:
        """Trained weights, without biases: the basis of FLOP counts."""
        moments = self.kernel.optimizer().items()
        return sum(a.size for name, a in moments if name.startswith("mean.") and name.endswith("weight"))

    def arrays(self) -> dict[str, Array]:
        """The state: `policy/...`, `training/...`, `optimizer/...`, and `counters`, which begin with version,
        step and gradient steps."""
        weights = Weights(self.version, self.policy(), self.exploration())
        arrays = {f"policy/{name}": array for name, array in weights.pack().items()}
        arrays |= {f"training/{name}": array for name, array in self.kernel.training().items()}
        arrays |= {f"optimizer/{name}": array for name, array in self.kernel.optimizer().items()}
        return arrays | {"counters": np.array([self.version, self.step, self.gradient_steps], np.int64)}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        """Load the state that `arrays` returned."""
        policy = with_prefix(arrays, "policy/")
        self.kernel.load_parameters(policy | with_prefix(arrays, "training/"))
        self.kernel.load_optimizer(with_prefix(arrays, "optimizer/"))
        if self.encoder.normalizer is not None:
            self.encoder.normalizer.load(policy)
        self.version, self.step, self.gradient_steps = (int(x) for x in arrays["counters"][:3])

    def load_from_parent(self, arrays: dict[str, Array]) -> None:
        """Load the state of a parent run, which may have other environments and other settings."""
        self.load_arrays(arrays)

    def extras(self) -> dict[str, Array]:
        """Views of arrays that are too large for every checkpoint; saved with the last one only."""
        return {}

    def load_extras(self, arrays: dict[str, Array] | None) -> str:
        """Load them after `load_arrays`. If they were not saved, returns the consequence as a sentence."""
        return ""


class Algorithm(ABC):
    """The record of an algorithm.

    The defaults describe an algorithm with a torch kernel only, which learns in float32 and keeps nothing but
    its networks. Facts that could be silently wrong have no default.
    """

    name: ClassVar[str]
    section: ClassVar[type[AlgorithmSection]]
    has_bf16: ClassVar[bool] = False  # the torch kernel can learn in bfloat16
    why_no_memory: ClassVar[str] = "its updates do not carry memory"  # empty if it can learn with --recurrent
    compiled_kernel_has_threads: ClassVar[bool] = False
    compiled: ClassVar[str] = ""  # module with `compile_kernels` and `is_compiling`, for the command line
    holds: ClassVar[str] = "blocks"  # the contents of its memory, for the plan
    overlaps_on_cores: ClassVar[bool] = (
        False  # rollouts are short, so overlap pays if workers leave a core free
    )
    sampled_play_is_worse: ClassVar[bool] = False  # exploration is not part of the learned policy

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Its rows of the metric table."""
        module = sys.modules[type(self).__module__]
        return read_metrics(Path(str(module.__file__)).with_name("metrics.yaml"))

    @abstractmethod
    def layout(self, config: Config, spec: EnvSpec) -> PolicySpec:
        """The policy of a config."""

    @abstractmethod
    def make_learner(self, config: Settled, spec: EnvSpec) -> Learner:
        """A learner with initial weights drawn from the run's seed."""

    def adapt_actions(self, spec: EnvSpec) -> EnvSpec:
        """The environment with its actions in the form that the algorithm chooses."""
        return spec

    def refuse(self, resolved: Resolved, spec: EnvSpec) -> list[str]:
        """The problems of a config in this environment."""
        return []

    def notes_on_branch(self, config: Settled) -> list[str]:
        """What a branch does not inherit, in sentences."""
        return []

    @abstractmethod
    def describe(self, config: Settled, spec: EnvSpec) -> list[Fact]:
        """Its rows of the printed plan."""

    def describe_critic(self, config: Settled, spec: EnvSpec) -> list[Fact]:
        """The plan's row about leaves that only the critic reads."""
        hidden = ", ".join(self.layout(config, spec).critic_leaves)
        return [Fact("critic", f"also reads {hidden}", "which the actor does not")] if hidden else []

    @abstractmethod
    def trace_decay(self, config: Config) -> float:
        """The decay of credit per step; a segment must cover its horizon. 0: one step is enough."""

    @abstractmethod
    def refuse_lag(self, config: Settled) -> str:
        """Why rollouts of older weights would harm; empty if they don't."""

    @abstractmethod
    def measure_update_s(self, learner: Learner, config: Settled, spec: EnvSpec) -> float:
        """Seconds of learning per transition, measured."""

    def choose_measured(
        self, resolved: Resolved, collect_s: float, update_s: float
    ) -> tuple[dict[str, Any], str]:
        """Values by path for the fields that are `auto` and follow from measured costs, with the reason.

        collect_s, update_s: seconds per transition, measured with provisional values.
        """
        return {}, ""

    def prepare_rehearsal(self, learner: Learner) -> None:
        """Prepare a learner that is only timed: it learns from the first block on."""
        return

    def num_epochs(self, config: Settled) -> int:
        """Passes over each rollout."""
        return 1

    def flops_per_parameter(self, config: Settled) -> float:
        """FLOPs per weight and row of a gradient step: two for the forward pass, four for the backward
        pass."""
        return 6.0

    def fixed_batch(self, resolved: Resolved) -> int | None:
        """A batch size that rollouts must be a multiple of."""
        return None

    def chunk(self, config: Settled) -> int:
        """Steps of which a segment must be a multiple."""
        return 1

    def minibatch(self, config: Settled) -> int | None:
        """Rows of a minibatch, if minibatches divide a rollout."""
        return None

    def held_bytes(self, config: Config, spec: EnvSpec) -> int:
        """Memory in addition to blocks, networks and optimizers."""
        return 0

    def explain_held(self, config: Config, spec: EnvSpec, free_bytes: int) -> str:
        """Why that memory does not fit, and what does."""
        return ""

    def has_compiled_kernel(self, config: Config, threads: int) -> bool:
        """Whether a compiled kernel can learn this config with so many threads."""
        return False

    def verify_compiled_kernel(self, config: Config, spec: EnvSpec, threads: int) -> str:
        """Where the compiled kernel disagrees with the loss; empty if it agrees."""
        return ""

    def verify_device(self, config: Settled, spec: EnvSpec) -> str:
        """Where the device disagrees with the CPU; empty if it agrees."""
        return ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A value that changes linearly from `start` to `end`, which it reaches after `total` steps."""

    start: float
    end: float
    total: int

    def at(self, step: int) -> float:
        share = min(step / self.total, 1.0)
        return self.start + (self.end - self.start) * share


def schedule_of(section: AlgorithmSection, name: str, total: int) -> Schedule:
    """The schedule of a field with a `_final` value, which may be None."""
    start, end = getattr(section, name), getattr(section, f"{name}_final")
    return Schedule(start, start if end is None else end, total)
