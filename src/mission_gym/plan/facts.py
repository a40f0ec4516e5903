"""What the planner is given, and what it gives back. Seconds are wall seconds, costs are per transition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from mission_gym.env.pace import WAITING_SHARE
from mission_gym.procs import MachineFacts
from mission_gym.vector.record import Backend


@dataclass(frozen=True, slots=True)
class EnvFacts:
    """One environment, as measured in children."""

    step_s: float  # mean of a step with its share of resets, alone on the machine
    cpu_share: float = 1.0  # CPU seconds per second of stepping; far below 1, it waits
    spread: float = 0.0  # standard deviation of a step over its mean
    slowdown: float = 1.0  # of a step when every core steps
    memory_bytes: int = 1 << 17  # of one more environment in a process
    worker_bytes: int = 45 << 20  # of a worker process, without environments
    one_per_process: bool = False  # a second one in the same process can't be built

    @property
    def waits(self) -> bool:
        return self.cpu_share < WAITING_SHARE


@dataclass(frozen=True, slots=True)
class ActCost:
    """Choosing actions, the collector's own work included."""

    call_s: float = 40e-6  # of one call, whatever its rows
    row_s: float = 2e-6


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """One way to learn, and its seconds for each transition collected: all epochs."""

    device: str
    kernel: str
    threads: int
    step_s: float
    precision: str = "float32"

    def __str__(self) -> str:
        precision = f", {self.precision}" if self.precision != "float32" else ""
        threads = f", {self.threads} threads" if self.threads > 1 else ""
        return f"{self.kernel} kernel on {self.device}{precision}{threads}"


@dataclass(frozen=True, slots=True)
class Layout:
    """How environments are spread."""

    backend: Backend
    num_workers: int
    n_envs: int
    n_steps_per_env: int
    num_agents: int = 1  # of each environment; a step of it is one transition of each
    batch_size: int | None = None  # of minibatches, where the rollout grew and they must not

    @property
    def rollout(self) -> int:
        return self.n_envs * self.num_agents * self.n_steps_per_env

    def __str__(self) -> str:
        workers = self.backend.name_workers(self.num_workers)
        return f"{self.n_envs} environments{f' in {workers}' if workers else f', {self.backend.name}'}"

    def document(self) -> dict[str, Any]:
        """The layout with the backend's name, as it is kept."""
        return asdict(self) | {"backend": self.backend.name}


@dataclass(frozen=True, slots=True)
class Trial:
    """A layout that was really run for a moment."""

    layout: Layout
    collect_s: float


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is fixed, and what may be chosen. `layout` is what the fixed rules give."""

    layout: Layout
    backends: tuple[Backend, ...]  # that may be chosen
    held: Layout | None = None  # an earlier choice, which stays unless another is clearly faster
    batch_size: int | None = None  # where it is given: it divides the rollout
    minibatch: int | None = None  # what the fixed rules make of it, where it divides the rollout
    max_rollout: int = 1 << 30  # of environments that wait: a run must have some updates
    at_once: Callable[[Layout, UpdateCost], bool] = lambda layout, update: False  # both phases, side by side
    open_envs: bool = False
    open_steps: bool = True  # may shrink to hold the rollout
    open_workers: bool = True
    trace_decay: float = 0.99 * 0.95  # of a step's credit to the steps before it
    step_bytes: int = 64  # of a transition in a block
    block_copies: int = 1  # raw ones
    encoded_bytes: int = 64  # of a transition as network inputs, in all forms that the learner keeps
    eval_envs: int = 0  # environments of evaluations, in a vector of their own that is kept
    base_bytes: int = 400 << 20  # of the process that learns: torch, network, optimizer

    @property
    def min_steps(self) -> int:
        """The horizon of the advantage's trace: shorter segments would cut what it sees."""
        return ceil(1.0 / max(1.0 - self.trace_decay, 1e-3))


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a plan is made from. `updates` begins with the fixed rules' own."""

    machine: MachineFacts
    env: EnvFacts
    act: ActCost
    updates: Sequence[UpdateCost]
    wishes: Wishes
    trials: Sequence[Trial] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, what it should reach, and why."""

    layout: Layout
    update: UpdateCost
    steps_per_s: float
    memory_bytes: int
    reasons: list[str]
    changes: list[str]  # of what learning sees
    scaling: list[dict[str, Any]]  # the best layout for each number of environments, as it is kept
