"""What is known of a backend: everything that others ask about one, so that nobody asks for its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from mission_gym.vector.restarts import Limits

if TYPE_CHECKING:  # what loads NumPy or Gymnasium is imported where it is used: workers start before
    from mission_gym.data import Block, EnvSpec
    from mission_gym.env.factory import EnvRequest, Factory
    from mission_gym.env.pace import Pace
    from mission_gym.env.stages import Stages
    from mission_gym.procs import BoundedLog
    from mission_gym.procs.cluster import Cluster
    from mission_gym.rollout.collector import BlockCollector, Collector
    from mission_gym.vector.base import SeedOf, Vector


@dataclass(frozen=True, slots=True)
class Source:
    """What vectors are made from: an environment as it was asked for, and the limits of its processes."""

    env_id: str
    factory: Factory | Sequence[Factory]  # one for all, or one for each environment
    request: EnvRequest | None = None  # None: callables were given
    num_workers: int | None = None  # None: one for each usable core
    limits: Limits = field(default_factory=Limits)
    log: BoundedLog | None = None  # what environments print, where that is not this process's output
    max_sequence: int = 64  # elements that are kept of a sequence that is observed
    stages: Stages | None = None  # of a curriculum; `factory` builds the first
    cluster: Cluster | None = None  # where one is needed
    actor_workers: int = 1  # of the workers in each actor, on a cluster

    @property
    def first(self) -> Factory:
        """What builds the first environment."""
        return self.factory if callable(self.factory) else self.factory[0]


class Look(Protocol):
    """Builds, resets and closes a throw-away environment: its EnvSpec, and the pace of its steps, timed for
    about `measure_s`, where the backend can do so without harm. bare: as `make_vec` takes it."""

    def __call__(
        self, source: Source, measure_s: float = 0.0, *, bare: bool = False
    ) -> tuple[EnvSpec, Pace | None]: ...


class MakeVector(Protocol):
    """Makes the vector. options: those of the vector's class, as `infos`, or what a collector adds."""

    def __call__(
        self, source: Source, spec: EnvSpec, num_envs: int, seed_of: SeedOf, **options: Any
    ) -> Vector: ...


class CollectRequest(NamedTuple):
    """What a collector is made for."""

    num_envs: int
    num_steps: int
    num_blocks: int
    acting_rows: int
    seed: int
    first_ready: bool
    make_policy: Callable[[], Any]  # without weights yet
    is_portable: bool  # the policy may act in another process
    first_row: int = 0  # of these environments in a larger vector


Collected: TypeAlias = "tuple[Vector, BlockCollector, list[Block]]"  # close the vector


class MakeCollector(Protocol):
    """Makes the vector, the collector that steps it and the blocks it fills."""

    def __call__(
        self, backend: Backend, source: Source, spec: EnvSpec, seed_of: SeedOf, asked: CollectRequest
    ) -> Collected: ...


def collect_here(
    backend: Backend, source: Source, spec: EnvSpec, seed_of: SeedOf, asked: CollectRequest
) -> Collected:
    """The policy acts in this process, for all rows at once."""
    from mission_gym.rollout.collector import Collector

    vec = backend.make_vector(source, spec, asked.num_envs, seed_of)
    collector = Collector(vec, asked.make_policy(), spec, asked.seed, asked.acting_rows)
    return vec, collector, make_blocks(collector, asked)


def make_blocks(collector: Collector, asked: CollectRequest) -> list[Block]:
    """Blocks in this process's memory."""
    from mission_gym.rollout.blocks import make_block

    sizes = (asked.num_steps, collector.vec.num_rows)
    return [make_block(collector.spec, *sizes, state=collector.memory) for _ in range(asked.num_blocks)]


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to step environments.

    text: where they are stepped, for the flag's description, which begins it with the name.
    user_code: the process in which environments run: the learner's (`here`), another (`child`), or one of
    another machine (`cluster`); evaluations are then played by workers of this one.
    processes: that it takes beside the learner's; None: as many as `num_workers` says.
    process_name: what these are called, several of them.
    for_waiting: its rows wait side by side, and take turns at what they compute; one process is then enough,
    unless it has no time left.
    turn_s: seconds that a step costs its process beside what the environment and the policy compute.
    largest_group, most_groups: rows that wait for each other, while other groups are under way.
    most_envs: that a plan may choose.
    for_coroutines: it takes environments whose steps are coroutines, and no others.
    acts_itself: the NumPy form of a policy may act inside its processes.
    own_vector_form: it takes the environment's own vector form, whose rows can't be stepped, seeded, limited
    or restarted alone: an evaluation needs a row for each episode.
    cpu_is_known: environments compute in the threads that step them, so that their CPU time can be told.
    service: what its processes run, where they can start while the environment is looked at; they are the
    `spares` of its vector.
    """

    name: str
    look: Look
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
    make_collector: MakeCollector = collect_here
    service: str | None = None

    @property
    def runs_here(self) -> bool:
        """Environments share the learner's process: they are stepped together and can't be timed out."""
        return self.user_code == "here"

    @property
    def needs_cluster(self) -> bool:
        """A run on it is connected to a cluster, whose CPUs its workers take."""
        return self.user_code == "cluster"

    @property
    def chooses_workers(self) -> bool:
        """The number of its processes may be chosen."""
        return self.processes is None

    def choose_processes(self, num_envs: int, wanted: int | None, cores: int) -> int:
        """Processes beside the learner's for so many environments; wanted: None where none were asked for."""
        if self.processes is not None:
            return self.processes
        return min(wanted or (1 if self.for_waiting else cores), num_envs)

    def count_processes(self, num_workers: int) -> int:
        """Processes beside the learner's, on its machine."""
        if self.needs_cluster:
            return 0
        return num_workers if self.processes is None else self.processes

    def limit_playing(self, num_envs: int) -> int | None:
        """Environments of an evaluation at most, in a run of so many: what waits is often a process of its
        own, such as a browser. None: any number."""
        return num_envs if self.for_waiting else None

    def name_workers(self, num_workers: int) -> str:
        """`3 workers` for sentences, where their number may be chosen; else nothing."""
        if self.processes is not None:
            return ""
        return (
            f"{num_workers} {self.process_name if num_workers != 1 else self.process_name.removesuffix('s')}"
        )

    def count_groups(self, num_envs: int) -> int:
        """Groups of environments that wait: what a step costs after the wait, those of others need not wait
        for."""
        return max(1, min(num_envs // self.largest_group, self.most_groups))

    def group_rows(self, num_envs: int) -> int:
        """Environments of such a group."""
        return -(-num_envs // self.count_groups(num_envs))

    def takes(self, spec: EnvSpec) -> bool:
        """Whether it can step single environments of this kind."""
        return not self.for_coroutines or spec.coroutines != "none"
