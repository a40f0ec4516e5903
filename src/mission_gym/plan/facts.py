"""The planner's inputs and its result. Seconds are wall-clock seconds; costs are per transition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

from mission_gym.env.pace import WAITING_SHARE
from mission_gym.procs import MachineFacts
from mission_gym.vector.record import Backend


@dataclass(frozen=True, slots=True)
class EnvFacts:
    """One environment, measured in child processes."""

    step_s: float  # mean of a step with its share of resets, alone on the machine
    cpu_share: float = 1.0  # CPU seconds per second of stepping; far below 1 the environment waits
    spread: float = 0.0  # standard deviation of a step over its mean
    slowdown: float = 1.0  # of a step while every core steps
    memory_bytes: int = 1 << 17  # of one more environment in a process
    worker_bytes: int = 45 << 20  # of a worker process, without environments
    one_per_process: bool = False  # a second one in the same process can't be built

    @property
    def waits(self) -> bool:
        return self.cpu_share < WAITING_SHARE


@dataclass(frozen=True, slots=True)
class ActCost:
    """The cost of choosing actions, including the collector's own work."""

    call_s: float = 40e-6  # per call, for any number of columns
    column_s: float = 2e-6


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """A learner setup, and its update time per collected transition over all epochs."""

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
class RunLayout:
    """The number of environments, and their distribution over processes."""

    backend: Backend
    num_workers: int
    n_envs: int
    n_steps_per_env: int
    num_agents: int = 1  # per environment; each step is one transition of every agent
    batch_size: int | None = None  # of minibatches, if the rollout grew and they must keep their size

    @property
    def rollout(self) -> int:
        return self.n_envs * self.num_agents * self.n_steps_per_env

    def __str__(self) -> str:
        workers = self.backend.name_workers(self.num_workers)
        return f"{self.n_envs} environments{f' in {workers}' if workers else f', {self.backend.name}'}"

    def document(self) -> dict[str, Any]:
        """The layout as JSON, with the backend's name."""
        return asdict(self) | {"backend": self.backend.name}


@dataclass(frozen=True, slots=True)
class PlanInput:
    """The fixed values of a config, and the choices that the plan may make."""

    default: RunLayout  # without a plan
    backends: tuple[Backend, ...]  # to choose from
    previous: RunLayout | None = None  # an earlier choice, kept unless another layout is clearly faster
    batch_size: int | None = None  # explicit; divides the rollout
    minibatch: int | None = None  # of the default layout, if it divides the rollout
    max_rollout: int = 1 << 30  # for environments that wait: a run needs a number of updates
    overlaps: Callable[[RunLayout, UpdateCost], bool] = lambda layout, update: (
        False
    )  # collecting and learning
    open_envs: bool = False
    open_steps: bool = True  # may shrink so that the rollout keeps its size
    open_workers: bool = True
    trace_decay: float = 0.99 * 0.95  # of a step's credit for the steps before it
    chunk: int = 1  # steps of which a segment is a multiple: those that memory is learned through
    step_bytes: int = 64  # of a transition in a block
    block_copies: int = 1  # raw blocks
    encoded_bytes: int = 64  # of a transition as network inputs, in all forms that the learner keeps
    eval_envs: int = 0  # environments of evaluations, in a separate vector
    base_bytes: int = 400 << 20  # of the learner's process: torch, network, optimizer

    @property
    def min_steps(self) -> int:
        """The horizon of the advantage's trace, which shorter segments would cut off, in whole chunks."""
        return self.chunk * ceil(1.0 / max(1.0 - self.trace_decay, 1e-3) / self.chunk)


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """All facts that a plan is made from. `updates` starts with the default setup."""

    machine: MachineFacts
    env: EnvFacts
    act: ActCost
    updates: Sequence[UpdateCost]
    inputs: PlanInput
    trials: Mapping[RunLayout, float] = field(default_factory=dict)  # seconds of collecting, measured


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen layout and learner setup, their expected rate, and the reasons."""

    layout: RunLayout
    update: UpdateCost
    steps_per_s: float
    memory_bytes: int
    reasons: list[str]
    changes: list[str]  # that affect learning
