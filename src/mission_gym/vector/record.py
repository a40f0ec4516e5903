"""The record of a backend, and what vectors are made from: `Source`, `VectorOptions` and `Limits`.

Other packages read facts from a record and never compare its name. This module imports no NumPy and no
Gymnasium, so that workers can start first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from mission_gym.data import EnvSpec
    from mission_gym.env.factory import EnvRequest, Factory
    from mission_gym.env.pace import Pace
    from mission_gym.env.stages import Stages
    from mission_gym.errors import MissionGymError
    from mission_gym.procs import BoundedLog, Carver, Spares
    from mission_gym.vector.base import Vector

FIRST_TIMEOUT_S = 300.0  # building an environment and its first reset
# The overhead of one vector step in other processes, measured on two cores by `bench vector`.
_MESSAGE_S = 120e-6  # sending actions and receiving a batch
_PROCESS_S = 70e-6  # waking one process
MOST_PROCESSES = 64  # for environments that wait


@dataclass(frozen=True, slots=True)
class Limits:
    """When a worker counts as hung or too large, and how often an environment may fail."""

    timeout_s: float = 60.0
    max_restarts: int = 5
    memory_bytes: int | None = None  # per worker; None: an equal share of the free memory
    reset_timeout_s: float = field(init=False)  # a reset may take as long as the first one

    def __post_init__(self) -> None:
        object.__setattr__(self, "reset_timeout_s", max(self.timeout_s, FIRST_TIMEOUT_S))


class WorkerExtension(NamedTuple):
    """Code and shared memory that another package adds to the workers of a vector."""

    service: str  # the entry point of the worker processes
    setup: Any  # sent to each of them
    carve: Callable[[Carver], Any]  # allocates the additional shared memory, in the same order on both sides


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """How a vector steps its environments. Vectors ignore the options that do not apply to them.

    infos: batches carry the info dicts.
    autoreset: when an ended row is reset: in the same step, instead of its next step, or only by `reset`
    (Gymnasium's auto-reset modes).
    limits: of the worker processes and of failing environments.
    stages: of a curriculum.
    num_workers: None for one worker per usable core.
    log: receives the environments' output; None for this process's output.
    on_failure: receives every error after which an environment is rebuilt; in this process, from any thread.
    group_size: environments that must share a worker, because the policy acts for them together.
    first_ready: `recv` returns the rows of the workers that are ready, not of all that were sent.
    extension: additions to the workers.
    spares: worker processes that are already starting.
    """

    infos: bool = False
    autoreset: Literal["same_step", "next_step", "disabled"] = "same_step"
    limits: Limits = field(default_factory=Limits)
    stages: Stages | None = None
    num_workers: int | None = None
    log: BoundedLog | None = None
    on_failure: Callable[[MissionGymError], None] | None = None
    group_size: int = 1
    first_ready: bool = False
    extension: WorkerExtension | None = None
    spares: Spares | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The environment that vectors are made from, and the options of these vectors."""

    env_id: str
    factory: Factory | Sequence[Factory]  # one for all environments, or one for each
    request: EnvRequest | None = None  # None if callables were given
    options: VectorOptions = field(default_factory=VectorOptions)
    max_sequence: int = 64  # elements kept of an observed sequence
    cluster: Any = None  # `ray.cluster.Cluster`, for backends that need one
    actor_workers: int = 1  # workers per Ray actor

    @property
    def first(self) -> Factory:
        """The factory of the first environment."""
        return self.factory if callable(self.factory) else self.factory[0]

    def with_options(self, **changes: Any) -> Source:
        """The same environment with other options."""
        return replace(self, options=replace(self.options, **changes))


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to step environments.

    probe: (source, measure_s=0.0, *, bare=False) -> EnvSpec and Pace. Builds, resets and closes a throw-away
    environment, and times its steps for about `measure_s` if the backend can do so safely, else the pace is
    None. bare: for `make_vec`.
    make_vector: (source, spec, num_envs, seed_of, **changes of the source's options) -> Vector.
    text: where environments are stepped; follows the name in the flag's description.
    user_code: the process that runs the environments: the learner's (`here`), another one (`child`), or one
    on another machine (`cluster`). With `cluster`, workers on this machine play the evaluations.
    processes: processes in addition to the learner's; None: `num_workers` of them.
    process_name: the plural noun for these processes.
    for_waiting: environments wait concurrently and take turns computing, so one process is enough until it
    runs out of time.
    turn_s: seconds that a step costs its process, without the environment's and the policy's own time.
    wake_s: seconds to start the step of one environment, while no other one can be started.
    largest_group, most_groups: environments that wait for each other while other groups are stepped.
    most_envs: the most environments that a plan may choose.
    for_coroutines: takes only environments whose steps are coroutines.
    acts_itself: the NumPy form of a policy can act inside its processes.
    own_vector_form: takes the environment's own vector form. Its rows can't be stepped, seeded, limited or
    restarted alone, so an evaluation needs one row per episode.
    cpu_is_known: environments compute in the threads that step them, so their CPU time can be measured.
    service: the worker's entry point, if workers can start while the environment is being probed.
    make_collector: replaces `rollout.make.make_collector` for a backend with its own collector.
    """

    name: str
    probe: Callable[..., tuple[EnvSpec, Pace | None]]
    make_vector: Callable[..., Vector]
    text: str
    user_code: Literal["here", "child", "cluster"]
    processes: int | None = 0
    process_name: str = "workers"
    for_waiting: bool = False
    turn_s: float = 0.0
    wake_s: float = 0.0
    largest_group: int = 32
    most_groups: int = 8
    most_envs: int = 1024
    for_coroutines: bool = False
    acts_itself: bool = False
    own_vector_form: bool = False
    cpu_is_known: bool = True
    service: str | None = None
    make_collector: Callable[..., Any] | None = None

    @property
    def runs_here(self) -> bool:
        """Environments share the learner's process: they are stepped together and can't be timed out."""
        return self.user_code == "here"

    @property
    def needs_cluster(self) -> bool:
        """A run connects to a cluster and uses its CPUs for workers."""
        return self.user_code == "cluster"

    @property
    def chooses_workers(self) -> bool:
        """The number of processes is a choice."""
        return self.processes is None

    def choose_processes(
        self, num_envs: int, requested: int | None, cores: int, *, waits: bool = False
    ) -> int:
        """The number of processes in addition to the learner's. requested: None for automatic. waits: the
        environments wait, so that many processes share a core."""
        if self.processes is not None:
            return self.processes
        automatic = 1 if self.for_waiting else max(cores, MOST_PROCESSES) if waits else cores
        return min(requested or automatic, num_envs)

    def count_processes(self, num_workers: int) -> int:
        """The number of processes in addition to the learner's, on the learner's machine."""
        if self.needs_cluster:
            return 0
        return num_workers if self.processes is None else self.processes

    def limit_playing(self, num_envs: int) -> int | None:
        """The most environments that an evaluation may open in a run with `num_envs`; None for no limit.

        An environment that waits often owns a process, such as a browser.
        """
        return num_envs if self.for_waiting else None

    def name_workers(self, num_workers: int) -> str:
        """`3 workers` if the number of processes is a choice, else an empty string."""
        if self.processes is not None:
            return ""
        name = self.process_name if num_workers != 1 else self.process_name.removesuffix("s")
        return f"{num_workers} {name}"

    def describe(self, num_workers: int) -> str:
        """The backend and its processes: `workers backend, 3 workers`."""
        workers = self.name_workers(num_workers)
        return f"{self.name} backend{workers and f', {workers}'}"

    def count_groups(self, num_envs: int) -> int:
        """The number of groups of waiting environments: one group acts while the others wait."""
        return max(1, min(num_envs // self.largest_group, self.most_groups))

    def group_size(self, num_envs: int) -> int:
        """The number of environments in such a group."""
        return -(-num_envs // self.count_groups(num_envs))

    def takes(self, spec: EnvSpec) -> bool:
        """Whether the backend can step single environments of this kind."""
        return not self.for_coroutines or spec.coroutines != "none"

    def list_processes(self, pace: Pace, num_envs: int, cores: int) -> list[int]:
        """The numbers of processes worth comparing for environments of this pace."""
        if self.processes is not None:
            return [self.processes]
        if self.for_waiting:
            return list(range(1, min(cores, num_envs) + 1))
        sizes = {min(num_envs, cores)}
        if pace.waits:  # as many as keep every core busy, or one process per environment
            busy = ceil(cores / max(pace.cpu_share, 1e-3))
            sizes |= {min(num_envs, size, MOST_PROCESSES) for size in (busy, num_envs)}
        return sorted(sizes)

    def predict_step_s(self, pace: Pace, num_envs: int, num_workers: int, cores: int) -> float:
        """Seconds of one step of a vector of `num_envs` environments in `num_workers` processes."""
        if self.runs_here:
            return pace.step_s * num_envs
        cpu_s, in_process = pace.step_s * pace.cpu_share, ceil(num_envs / num_workers)
        if self.for_waiting:
            turns_s = (cpu_s + self.turn_s) * in_process * max(1.0, num_workers / cores)
            own_s = max(pace.step_s, turns_s) + self.wake_s * num_envs
        else:
            own_s = max(pace.step_s * in_process, cpu_s * num_envs / min(cores, num_workers))
        return _MESSAGE_S + _PROCESS_S * num_workers + own_s


def split_envs(num_envs: int, num_workers: int, group_size: int = 1) -> list[range]:
    """The environments of each worker: contiguous, in whole groups, as equal as possible."""
    num_groups = -(-num_envs // group_size)
    workers = min(num_workers, num_groups)
    edges = [min(num_envs, num_groups * i // workers * group_size) for i in range(workers + 1)]
    return [range(first, last) for first, last in pairwise(edges)]


def split_groups(num_envs: int, group_size: int) -> list[range]:
    """The environments of a worker in groups; the last group may be smaller."""
    return [range(first, min(first + group_size, num_envs)) for first in range(0, num_envs, group_size)]
