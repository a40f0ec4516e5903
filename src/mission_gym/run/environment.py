"""An environment that was looked at, and how vectors of it are made: backend, workers, acting groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from mission_gym.algorithms import load_algorithm
from mission_gym.config.layers import Resolved, apply_image_profile
from mission_gym.config.rules import apply_rules, fix_num_envs
from mission_gym.config.schema import Config, Settled
from mission_gym.config.sizes import choose_batch_size
from mission_gym.data import EnvSpec
from mission_gym.env.factory import EnvRequest, Factory, limit_steps, names_trusted
from mission_gym.env.pace import Pace
from mission_gym.env.stages import Stages, Variant
from mission_gym.env.wrapping import name_code
from mission_gym.errors import ConfigError
from mission_gym.names import judge
from mission_gym.plan.tuner import may_plan
from mission_gym.policy.trunks import load_network
from mission_gym.procs import Attendance, BoundedLog, with_companion
from mission_gym.ray.cluster import Cluster
from mission_gym.ray.run import connect, count_cpus
from mission_gym.run.stages import (
    EnvSource,
    Parts,
    check_metrics,
    has_several_arguments,
    look_at_stages,
    make_parts,
)
from mission_gym.store.trusted import permit
from mission_gym.streams import training_seed
from mission_gym.vector.backends import (
    load_backend,
    load_default,
    load_for_cluster,
    load_for_coroutines,
    load_rivals,
)
from mission_gym.vector.base import SeedOf, Vector
from mission_gym.vector.record import Backend, Source
from mission_gym.vector.restarts import Limits

_MAX_GROUPS = 64  # of environments that wait, where each group makes segments of its own

EVALUATION_STEPS = 10_000  # of an episode that has no limit of its own


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
    kwargs: dict[str, Any] = field(default_factory=dict)  # of all stages
    stages: Stages | None = None  # of training; `request` and `factory` are those of evaluations
    played: Variant | None = None  # the stage that evaluations are on
    companion: Attendance | None = None  # at work as long as somebody holds this
    cluster: Cluster | None = None  # at work likewise
    most_playing: int | None = None  # environments of an evaluation

    @property
    def step_s(self) -> float:
        """Seconds of a step by the first look, 0 where none was taken."""
        return self.pace.step_s if self.pace else 0.0

    @property
    def backends(self) -> dict[str, Backend]:
        """Those that it may run on, by name, the one chosen first."""
        return {each.name: each for each in (self.backend, *self.rivals)}

    def limited(self) -> Environment:
        """The same environment with a step limit, where it declares none: an evaluation must end."""
        if self.spec.max_episode_steps is not None or self.backend.own_vector_form:
            return self
        return replace(self, factory=partial(limit_steps, self.factory, EVALUATION_STEPS))

    @property
    def source(self) -> Source:
        """What vectors for training are made from."""
        factory = self.factory if self.stages is None else self.stages.variants[0].factory
        return Source(
            self.spec.env_id,
            factory,
            self.request,
            self.num_workers,
            self.limits,
            self.log,
            stages=self.stages,
            cluster=self.cluster,
        )

    def make_vector(self, num_envs: int, seed_of: SeedOf) -> Vector:
        """A vector for evaluations."""
        source = replace(self.source, factory=self.factory, stages=None)
        if self.played is not None and self.backend.own_vector_form:
            source = replace(source, stages=Stages((self.played,)))
        return self.backend.make_vector(source, self.spec, num_envs, seed_of)

    def with_parts(self, parts: Parts, kwargs: dict[str, Any]) -> Environment:
        """The same environment, made from other parts."""
        return replace(self, kwargs=kwargs, **parts._asdict())

    def recipe(self, stage: int | None) -> tuple[EnvRequest, dict[str, Any] | None]:
        """What episodes of a stage are made from, and the options of their resets; None: of evaluations."""
        variant = self.played if stage is None or self.stages is None else self.stages.variants[stage]
        return (self.request, None) if variant is None else (variant.request, variant.options)


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
    files: Mapping[str, str] | None = None,
    all_stages: bool = False,
) -> Environment:
    """Build one environment, read its spec and close it; with `all_stages` that of each stage. `kwargs` are
    those of the config, with files replaced by the run's own copies; files: those of stages. look_s: for
    which steps in a worker are timed. calls: see EnvRequest. A companion that it declares is started."""

    def look(told: dict[str, Any]) -> Environment:
        parts = make_parts(config, kwargs, source, calls, files or {}, told)
        backend = load_backend(choose_backend(config))
        limits = Limits(timeout_s=config.vector.env_timeout, max_restarts=config.vector.max_restarts)
        asked = Source(
            config.env.env_id,
            parts.factory,
            parts.request if source is None else None,
            limits=limits,
            max_sequence=config.env.max_sequence,
            stages=parts.stages if backend.own_vector_form else None,
        )
        curriculum = config.env.curriculum if all_stages else None
        if curriculum is not None and not backend.own_vector_form:
            spec, pace = look_at_stages(
                curriculum, parts, lambda factory: backend.probe(replace(asked, factory=factory), look_s)
            )
        else:
            spec, pace = backend.probe(asked, look_s)
        if curriculum is not None:
            check_metrics(curriculum, spec)
        spec = load_algorithm(config.run.algo).adapt_actions(spec)
        backend = load_backend(choose_backend(config, spec))
        # Who gives the address of a cluster wants its nodes, whatever would be faster here.
        is_open = config.vector.vector == "auto" and not backend.needs_cluster
        rivals = load_rivals(spec) if is_open else ()
        num_workers = choose_num_workers(config, backend)
        plain = Environment(
            spec,
            parts.request,
            parts.factory,
            backend,
            num_workers,
            limits,
            pace=pace,
            rivals=rivals,
        )
        n_envs = config.vector.n_envs
        most_playing = backend.limit_playing(n_envs) if isinstance(n_envs, int) else None
        return replace(plain.with_parts(parts, kwargs), most_playing=most_playing)

    environment, companion = with_companion(look)
    return replace(environment, companion=companion)


def probe_environment(
    resolved: Resolved, source: EnvSource = None, *, look_s: float = 0.0
) -> tuple[Environment, Resolved]:
    """Open the environment of a new run, and note in the config what follows from it: its agents, and the
    profile for pictures. What does not fit together is refused before, unless several agents, which
    registered ids never have, may make it fit. look_s: as in `open_environment`, where a plan may be made."""
    first, misfit = fix_num_envs(resolved), None
    try:
        first, _ = apply_rules(first)
    except ConfigError as error:
        if source is None and ":" not in first.config.env.env_id:
            raise
        misfit = error
    config = first.config
    cluster = connect(config, load_backend(choose_backend(config)))  # refused before anything is measured
    environment = open_environment(
        config,
        dict(config.env.env_kwargs),
        source,
        look_s=look_s if may_plan(config) else 0.0,
        calls=permit_names(config, first.typed),
        all_stages=True,
    )
    if misfit is not None and not environment.spec.agents:
        raise misfit
    noted = note_agents(resolved, environment.spec)
    if environment.spec.sees_images:
        noted = apply_image_profile(noted)
    return replace(environment, cluster=cluster), noted


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


def leave_vector_form(resolved: Resolved) -> tuple[Resolved, list[str]]:
    """A vector form has the same arguments for all its rows, and takes no wrappers: where stages have others,
    or wrappers are given, a config that did not ask for it gets single environments, aloud. ConfigError if
    it did."""
    config, path = resolved.config, "vector.vector"
    several = has_several_arguments(config.env.curriculum)
    if not several and not config.env.wrap:
        return resolved, []
    backend, source = load_backend(choose_backend(config)), resolved.sources[path]
    if not backend.own_vector_form:
        return resolved, []
    if several:
        stages = f"the stages of curriculum {config.env.curriculum} have different kwargs"
        why = f"vector={backend.name} builds one environment for all rows, and {stages}"
        remedy = "use another vector, or stages with options"
    else:
        wrappers = ", ".join(config.env.wrap)
        why = f"vector={backend.name} takes the environment as it is, and wrappers are given ({wrappers})"
        remedy = "use another vector, or remove them"
    if resolved.explicit(path):
        raise ConfigError(f"{why}; {remedy} [{source}]")
    note = f"{why}; single environments are used"
    return resolved.with_values({path: "auto"}, f"{source}, adapted"), [note]


def with_backend(environment: Environment, config: Settled) -> Environment:
    """The environment on the backend of a settled config."""
    backend = load_backend(config.vector.vector)
    return replace(
        environment,
        backend=backend,
        num_workers=config.vector.num_workers,
        most_playing=backend.limit_playing(config.num_envs),
    )


def choose_backend(config: Config, spec: EnvSpec | None = None) -> str:
    """An environment of the user's runs in this process only if that was asked for. spec: once it was looked
    at, since one whose steps are coroutines waits."""
    if config.vector.vector != "auto":
        return config.vector.vector
    if config.vector.ray_address is not None:
        return load_for_cluster().name
    if spec is not None and spec.coroutines == "only":
        return load_for_coroutines().name
    trusted = names_trusted(EnvRequest(config.env.env_id, wrap=config.env.wrap))
    return load_default(trusted=trusted and config.vector.num_workers == "auto").name


def choose_num_workers(config: Config, backend: Backend) -> int:
    """Workers of a run: one for each usable core, or one for all that wait; none without an environment."""
    if not backend.chooses_workers:
        return 1
    wanted = config.vector.num_workers
    return backend.choose_processes(
        config.num_envs, None if wanted == "auto" else wanted, count_cpus(backend)
    )


def count_groups(config: Config, backend: Backend) -> int:
    """How many acting groups are wanted at least: one for each worker; of environments that wait one for each
    where a slow one must stall only its own group, else some that are ready one after the other."""
    num_workers = choose_num_workers(config, backend)
    if not backend.for_waiting:
        return num_workers
    if config.vector.blocks == "first_ready":
        return min(config.num_envs, _MAX_GROUPS)
    return max(num_workers, backend.count_groups(config.num_envs))


def choose_acting_rows(num_envs: int, num_groups: int) -> int:
    """Rows of a group: so many groups at least, equal ones where that loses little."""
    share = num_envs // num_groups
    fitting = choose_batch_size(num_envs, share)
    return fitting if 2 * fitting >= share else share


def training_seeds(seed: int, counters: dict[str, Any]) -> SeedOf:
    """Every episode of every environment has its own seed, in the training range; a branch begins behind
    its parent's episodes."""
    return partial(training_seed, seed, counters)  # of a light module: every worker loads it
