"""An environment that was looked at, and how vectors of it are made: backend, workers, acting groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gymnasium.wrappers import TimeLimit

from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec
from mission_gym.env.factory import EnvRequest, Factory, make_factory, make_vector_factory, names_trusted
from mission_gym.env.probe import probe, probe_vector
from mission_gym.errors import UsageError
from mission_gym.procs import BoundedLog, usable_cores
from mission_gym.streams import episode_seed
from mission_gym.vector.batched import BatchedVec
from mission_gym.vector.crew import Limits
from mission_gym.vector.probing import probe_in_worker
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.workers import WorkersVec

_MAX_GROUPS = 64  # of environments that wait, where each group makes segments of its own
_WAITING_ROWS, _WAITING_GROUPS = 32, 8  # of environments that wait for each other


EVALUATION_STEPS = 10_000  # of an episode that has no limit of its own


SeedOf = Callable[[int, int], int | None]
Vector = SerialVec | BatchedVec | WorkersVec
EnvSource = Callable[..., Any] | None  # a callable of the user's that can't be imported


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that was looked at, and how to build vectors of it."""

    spec: EnvSpec
    request: EnvRequest
    factory: Factory
    backend: str  # serial, workers, threads or batched
    num_workers: int = 1
    limits: Limits = field(default_factory=Limits)
    log: BoundedLog = field(default_factory=lambda: BoundedLog(None))  # what environments print
    step_s: float | None = None  # of a first look, where it was taken

    def limited(self) -> Environment:
        """The same environment with a step limit, where it declares none: an evaluation must end."""
        if self.spec.max_episode_steps is not None or self.backend == "batched":
            return self
        return replace(self, factory=partial(_limit_steps, self.factory))

    def make_vector(self, num_envs: int, seed_of: SeedOf, **parts: Any) -> Vector:
        """A vector of it; `parts` are those that a collector adds to workers."""
        if self.backend == "batched":
            return BatchedVec(make_vector_factory(self.request)(num_envs), self.spec, seed_of)
        if self.backend == "serial":
            return SerialVec(
                self.factory, self.spec, num_envs, seed_of, max_restarts=self.limits.max_restarts
            )
        return WorkersVec(
            self.factory,
            self.spec,
            num_envs,
            seed_of,
            num_workers=self.num_workers,
            threads=self.backend == "threads",
            limits=self.limits,
            log=self.log,
            **parts,
        )


def _limit_steps(factory: Factory) -> Any:
    return TimeLimit(factory(), EVALUATION_STEPS)


def open_environment(
    config: Config, kwargs: dict[str, Any], source: EnvSource = None, *, look_s: float = 0.0
) -> Environment:
    """Build one environment, read its spec and close it. `kwargs` are those of the config, with files
    replaced by the run's own copies. look_s: for which steps in a worker are timed."""
    request = EnvRequest(config.env.env_id, kwargs, config.env.wrap)
    backend, step_s = choose_backend(config), None
    if source is not None:
        if backend == "batched":
            raise UsageError(
                "a callable environment can't be batched; give module:callable [--vector batched]"
            )
        factory = make_factory(lambda: source(**kwargs))
    else:
        factory = make_factory(request)
    if backend == "batched":
        spec = probe_vector(make_vector_factory(request), config.env.env_id)
    elif backend == "serial":
        spec = probe(factory, config.env.env_id)
    else:
        spec, step_s = probe_in_worker(factory, config.env.env_id, look_s)
    limits = Limits(timeout_s=config.vector.env_timeout, max_restarts=config.vector.max_restarts)
    num_workers = choose_num_workers(config, backend)
    return Environment(spec, request, factory, backend, num_workers, limits, step_s=step_s)


def choose_backend(config: Config) -> str:
    """An environment of the user's runs in this process only if that was asked for."""
    if config.vector.vector != "auto":
        return config.vector.vector
    trusted = names_trusted(EnvRequest(config.env.env_id, wrap=config.env.wrap))
    return "serial" if trusted and config.vector.num_workers == "auto" else "workers"


def choose_num_workers(config: Config, backend: str) -> int:
    """Workers of a run: one for each usable core, and none without an environment."""
    if backend != "workers":
        return 1
    wanted = config.vector.num_workers
    return min(usable_cores() if wanted == "auto" else wanted, config.num_envs)


def count_groups(config: Config) -> int:
    """How many acting groups are wanted at least: one for each worker; with threads one for each environment
    where a slow one must stall only its own group, else some that are ready one after the other."""
    if config.vector.vector != "threads":
        return choose_num_workers(config, config.vector.vector)
    if config.vector.blocks == "first_ready":
        return min(config.num_envs, _MAX_GROUPS)
    return count_waiting_groups(config.num_envs)


def count_waiting_groups(num_envs: int) -> int:
    """Acting groups of environments that wait: what a step costs after the wait, those of other groups need
    not wait for."""
    return max(1, min(num_envs // _WAITING_ROWS, _WAITING_GROUPS))


def choose_acting_rows(num_envs: int, num_groups: int) -> int:
    """Rows of a group: so many groups at least, equal ones where that is no great loss."""
    share = num_envs // num_groups
    fitting = max(rows for rows in range(1, share + 1) if num_envs % rows == 0)
    return fitting if 2 * fitting >= share else share


def training_seeds(seed: int, counters: dict[str, Any]) -> SeedOf:
    """Every episode of every environment has its own seed, in the training range; a branch begins behind
    its parent's episodes."""
    return partial(_training_seed, seed, counters)


def _training_seed(seed: int, counters: dict[str, Any], env_id: int, episode: int) -> int:
    return episode_seed(seed, "train", env_id, episode + counters["episode_offset"])
