"""An environment that was looked at, and how vectors of it are made: backend, workers, acting groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium.wrappers import TimeLimit
from torch import nn

from mission_gym.algorithms import load_algorithm
from mission_gym.backends import load_backend, load_default, load_rivals
from mission_gym.backends.record import Backend, Source
from mission_gym.config.layers import Resolved
from mission_gym.config.rules import finish
from mission_gym.config.schema import Config, Settled
from mission_gym.config.sizes import choose_batch_size
from mission_gym.data import EnvSpec
from mission_gym.env.factory import EnvRequest, Factory, make_factory, names_trusted
from mission_gym.env.pace import Pace
from mission_gym.env.wrapping import name_code
from mission_gym.errors import ConfigError
from mission_gym.names import judge
from mission_gym.plan.tuner import may_plan
from mission_gym.plan.wishes import fix_envs
from mission_gym.policy.trunks import load_network
from mission_gym.procs import Attendance, BoundedLog, attended, usable_cores
from mission_gym.store.trusted import permit
from mission_gym.streams import episode_seed
from mission_gym.vector.base import SeedOf, Vector
from mission_gym.vector.restarts import Limits

_MAX_GROUPS = 64  # of environments that wait, where each group makes segments of its own
_WAITING_ROWS, _WAITING_GROUPS = 32, 8  # of environments that wait for each other


EVALUATION_STEPS = 10_000  # of an episode that has no limit of its own


EnvSource = Callable[..., Any] | None  # a callable of the user's that can't be imported


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that was looked at, and how to build vectors of it."""

    spec: EnvSpec
    request: EnvRequest
    factory: Factory
    backend: Backend
    num_workers: int = 1
    limits: Limits = field(default_factory=Limits)
    log: BoundedLog = field(default_factory=lambda: BoundedLog(None))  # what environments print
    pace: Pace | None = None  # of a first look, where it was taken
    rivals: tuple[Backend, ...] = ()  # that a plan may choose instead
    companion: Attendance | None = None  # at work as long as somebody holds this

    @property
    def backends(self) -> dict[str, Backend]:
        """Those that it may run on, by name, the one chosen first."""
        return {each.name: each for each in (self.backend, *self.rivals)}

    def limited(self) -> Environment:
        """The same environment with a step limit, where it declares none: an evaluation must end."""
        if self.spec.max_episode_steps is not None or self.backend.own_vector_form:
            return self
        return replace(self, factory=partial(_limit_steps, self.factory))

    @property
    def source(self) -> Source:
        """What vectors of it are made from."""
        return Source(self.spec.env_id, self.factory, self.request, self.num_workers, self.limits, self.log)

    def make_vector(self, num_envs: int, seed_of: SeedOf) -> Vector:
        """A vector of it."""
        return self.backend.make_vector(self.source, self.spec, num_envs, seed_of)


def _limit_steps(factory: Factory) -> Any:
    return TimeLimit(factory(), EVALUATION_STEPS)


_NAMES = ("env.env_id", "env.wrap", "policy.network")  # values that name code


def permit_names(
    config: Config, typed: Callable[[str], bool], *, run: Path | None = None, folder: str = ""
) -> tuple[str, ...]:
    """Judge the code that a config names, before any of it is imported (`store/trusted.py`). typed: by path,
    whether the user named it here and now."""
    named: dict[str, tuple[str, ...]] = {}
    for path in _NAMES:
        value = config.value(path) or ()
        named[path] = (value,) if isinstance(value, str) else name_code(value)
    mine = {name for path, names in named.items() if typed(path) for name in names}
    calls = permit([name for names in named.values() for name in names], typed=mine, run=run, folder=folder)
    network = config.policy.network
    if network and network not in calls:
        judge(network, load_network(network), (nn.Module,), calls)
    return calls


def open_environment(
    config: Config,
    kwargs: dict[str, Any],
    source: EnvSource = None,
    *,
    look_s: float = 0.0,
    calls: tuple[str, ...] | None = None,
) -> Environment:
    """Build one environment, read its spec and close it. `kwargs` are those of the config, with files
    replaced by the run's own copies. look_s: for which steps in a worker are timed. calls: see EnvRequest."""
    backend = load_backend(choose_backend(config))
    rivals = load_rivals() if config.vector.vector == "auto" else ()
    limits = Limits(timeout_s=config.vector.env_timeout, max_restarts=config.vector.max_restarts)

    def look(told: dict[str, Any]) -> Environment:
        request = EnvRequest(config.env.env_id, kwargs, config.env.wrap, calls, told)
        factory = make_factory(request if source is None else lambda: source(**kwargs))
        asked = Source(
            config.env.env_id,
            factory,
            request if source is None else None,
            limits=limits,
            max_sequence=config.env.max_sequence,
        )
        spec, pace = backend.look(asked, look_s)
        spec = load_algorithm(config.run.algo).acts(spec)
        num_workers = choose_num_workers(config, backend)
        return Environment(spec, request, factory, backend, num_workers, limits, pace=pace, rivals=rivals)

    environment, companion = attended(look)
    return replace(environment, companion=companion)


def look_first(
    resolved: Resolved, source: EnvSource = None, *, look_s: float = 0.0
) -> tuple[Environment, Resolved]:
    """Open the environment of a new run, and note its agents in the config. What does not fit together is
    refused before, unless several agents, which registered ids never have, may make it fit. look_s: as in
    `open_environment`, where a plan may be made."""
    first, misfit = fix_envs(resolved), None
    try:
        first, _ = finish(first)
    except ConfigError as error:
        if source is None and ":" not in first.config.env.env_id:
            raise
        misfit = error
    config = first.config
    environment = open_environment(
        config,
        dict(config.env.env_kwargs),
        source,
        look_s=look_s if may_plan(config) else 0.0,
        calls=permit_names(config, first.typed),
    )
    if misfit is not None and not environment.spec.agents:
        raise misfit
    return environment, note_agents(resolved, environment.spec)


def note_agents(resolved: Resolved, spec: EnvSpec) -> Resolved:
    """The config with the environment's number of agents; ConfigError if another one was given."""
    path, found = "vector.num_agents", spec.num_agents
    given = resolved.config.vector.num_agents
    if given == found:
        return resolved
    if resolved.explicit(path):
        raise ConfigError(
            f"num_agents={given} is not what {spec.env_id} has: it has {found}; remove it"
            f" [{resolved.sources[path]}]"
        )
    return resolved.with_values({path: found}, "environment")


def place(environment: Environment, config: Settled) -> Environment:
    """The environment on the backend of a settled config."""
    backend = load_backend(config.vector.vector)
    return replace(environment, backend=backend, num_workers=config.vector.num_workers)


def choose_backend(config: Config) -> str:
    """An environment of the user's runs in this process only if that was asked for."""
    if config.vector.vector != "auto":
        return config.vector.vector
    trusted = names_trusted(EnvRequest(config.env.env_id, wrap=config.env.wrap))
    return load_default(trusted=trusted and config.vector.num_workers == "auto").name


def choose_num_workers(config: Config, backend: Backend) -> int:
    """Workers of a run: one for each usable core, and none without an environment."""
    if not backend.chooses_workers:
        return 1
    wanted = config.vector.num_workers
    return min(usable_cores() if wanted == "auto" else wanted, config.num_envs)


def count_groups(config: Config, backend: Backend) -> int:
    """How many acting groups are wanted at least: one for each worker; of environments that wait one for each
    where a slow one must stall only its own group, else some that are ready one after the other."""
    if not backend.for_waiting:
        return choose_num_workers(config, backend)
    if config.vector.blocks == "first_ready":
        return min(config.num_envs, _MAX_GROUPS)
    return count_waiting_groups(config.num_envs)


def count_waiting_groups(num_envs: int) -> int:
    """Acting groups of environments that wait: what a step costs after the wait, those of other groups need
    not wait for."""
    return max(1, min(num_envs // _WAITING_ROWS, _WAITING_GROUPS))


def choose_acting_rows(num_envs: int, num_groups: int) -> int:
    """Rows of a group: so many groups at least, equal ones where that loses little."""
    share = num_envs // num_groups
    fitting = choose_batch_size(num_envs, share)
    return fitting if 2 * fitting >= share else share


def training_seeds(seed: int, counters: dict[str, Any]) -> SeedOf:
    """Every episode of every environment has its own seed, in the training range; a branch begins behind
    its parent's episodes."""
    return partial(_training_seed, seed, counters)


def _training_seed(seed: int, counters: dict[str, Any], env_id: int, episode: int) -> int:
    return episode_seed(seed, "train", env_id, episode + counters["episode_offset"])
