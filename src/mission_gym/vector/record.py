"""The record of a backend: every fact that other rooms need about one, so that nobody asks for its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mission_gym.vector.restarts import Limits

if TYPE_CHECKING:  # NumPy and Gymnasium are imported inside functions: workers start first
    from mission_gym.data import EnvSpec
    from mission_gym.env.factory import EnvRequest, Factory
    from mission_gym.env.pace import Pace
    from mission_gym.env.stages import Stages
    from mission_gym.procs import BoundedLog
    from mission_gym.vector.base import SeedOf, Vector


@dataclass(frozen=True, slots=True)
class Source:
    """The environment that vectors are made from, and the limits of its processes."""

    env_id: str
    factory: Factory | Sequence[Factory]  # one for all environments, or one for each
    request: EnvRequest | None = None  # None if callables were given
    num_workers: int | None = None  # None: one per usable core
    limits: Limits = field(default_factory=Limits)
    log: BoundedLog | None = None  # receives the environments' output; None: this process's output
    max_sequence: int = 64  # elements kept of an observed sequence
    stages: Stages | None = None  # of a curriculum; `factory` builds the first
    cluster: Any = None  # `ray.cluster.Cluster`, for backends that need one
    actor_workers: int = 1  # workers per Ray actor

    @property
    def first(self) -> Factory:
        """The factory of the first environment."""
        return self.factory if callable(self.factory) else self.factory[0]


class ProbeEnvironment(Protocol):
    """Builds, resets and closes a throw-away environment. Returns its EnvSpec, and the pace of its steps,
    timed for about `measure_s`, if the backend can time them safely. bare: for `make_vec`."""

    def __call__(
        self, source: Source, measure_s: float = 0.0, *, bare: bool = False
    ) -> tuple[EnvSpec, Pace | None]: ...


class MakeVector(Protocol):
    """Makes the vector. options: keyword arguments of the vector's class."""

    def __call__(
        self, source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **options: Any
    ) -> Vector: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to step environments.

    text: where environments are stepped; follows the name in the flag's description.
    user_code: the process that runs the environments: the learner's (`here`), another one (`child`), or one
    on another machine (`cluster`). With `cluster`, workers on this machine play the evaluations.
    processes: processes in addition to the learner's; None: `num_workers` of them.
    process_name: the plural noun for these processes.
    for_waiting: environments wait concurrently and take turns computing, so one process is enough until it
    runs out of time.
    turn_s: seconds that a step costs its process, without the environment's and the policy's own time.
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
    probe: ProbeEnvironment
    make_vector: MakeVector
    text: str
    user_code: Literal["here", "child", "cluster"]
    processes: int | None = 0
    process_name: str = "workers"
    for_waiting: bool = False
    turn_s: float = 0.0
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

    def choose_processes(self, num_envs: int, requested: int | None, cores: int) -> int:
        """The number of processes in addition to the learner's. requested: None for automatic."""
        if self.processes is not None:
            return self.processes
        return min(requested or (1 if self.for_waiting else cores), num_envs)

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

    def count_groups(self, num_envs: int) -> int:
        """The number of groups of waiting environments: one group acts while the others wait."""
        return max(1, min(num_envs // self.largest_group, self.most_groups))

    def group_rows(self, num_envs: int) -> int:
        """The number of environments in such a group."""
        return -(-num_envs // self.count_groups(num_envs))

    def takes(self, spec: EnvSpec) -> bool:
        """Whether the backend can step single environments of this kind."""
        return not self.for_coroutines or spec.coroutines != "none"
