"""A probed environment, and how vectors of it are made: backend, workers, acting groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from mission_gym.algorithms import load_algorithm
from mission_gym.config.schema import Config, Settled
from mission_gym.config.sizes import choose_batch_size
from mission_gym.data import EnvSpec
from mission_gym.env.factory import EnvRequest, Factory, limit_steps, names_trusted
from mission_gym.env.leaves import may_hold_ids
from mission_gym.env.pace import Pace
from mission_gym.env.stages import Stages, StageVariant
from mission_gym.env.wrapper_names import name_code
from mission_gym.errors import MissionGymError, ResourceRefused, RunStateError, TrustError, UsageError
from mission_gym.names import judge
from mission_gym.policy.trunks import load_network
from mission_gym.procs import BoundedLog, RunningCompanion, with_companion
from mission_gym.ray.backend import connect, count_cpus
from mission_gym.ray.cluster import Cluster
from mission_gym.run.stages import (
    EnvSource,
    check_metrics,
    make_parts,
    name_file,
    pick_common,
    probe_stages,
    read_files,
)
from mission_gym.store.rundir import InferredLeaf, RunDir, read_lineage
from mission_gym.store.trusted import (
    name_tracker,
    permit,
    permit_contact,
    permit_copies,
    permit_kwargs,
    permit_request,
)
from mission_gym.vector.backends import (
    load_backend,
    load_default,
    load_for_cluster,
    load_for_coroutines,
    load_rivals,
)
from mission_gym.vector.base import SeedOf, Vector
from mission_gym.vector.record import Backend, Limits, Source, VectorOptions

_MAX_GROUPS = 64  # of environments that wait, with first-ready segments
EVALUATION_STEPS = 10_000  # highest limit of an evaluation episode without a step limit
_LEAST_EVALUATION_STEPS = 200
SERIAL_REMEDY = "or use --vector serial, which steps environments in the training process"
_NAMES = ("env.env_id", "env.wrap", "policy.network")  # values that name code


@dataclass(frozen=True, slots=True)
class Environment:
    """A probed environment, and everything that vectors of it are built from."""

    spec: EnvSpec
    request: EnvRequest
    factory: Factory
    backend: Backend
    num_workers: int = 1
    limits: Limits = field(default_factory=Limits)
    log: BoundedLog = field(default_factory=lambda: BoundedLog(None))  # the environments' output
    on_failure: Callable[[MissionGymError], None] | None = None
    pace: Pace | None = None  # measured while it was probed
    rivals: tuple[Backend, ...] = ()  # that a plan may choose instead
    kwargs: dict[str, Any] = field(default_factory=dict)  # of all stages
    stages: Stages | None = None  # of training; `request` and `factory` are for evaluations
    played: StageVariant | None = None  # the evaluation stage
    companion: RunningCompanion | None = None  # runs as long as this object is referenced
    cluster: Cluster | None = None  # connected as long as this object is referenced
    most_playing: int | None = None  # environments of an evaluation
    evaluation_steps: int = EVALUATION_STEPS  # of an evaluation episode without a step limit

    @property
    def step_s(self) -> float:
        """Seconds of a step, 0 if it was not measured."""
        return self.pace.step_s if self.pace else 0.0

    @property
    def backends(self) -> dict[str, Backend]:
        """The possible backends by name, the chosen one first."""
        return {each.name: each for each in (self.backend, *self.rivals)}

    def limited(self) -> Environment:
        """The environment with a step limit if it declares none: an evaluation must end."""
        if self.spec.max_episode_steps is not None or self.backend.own_vector_form:
            return self
        return replace(self, factory=partial(limit_steps, self.factory, self.evaluation_steps))

    @property
    def source(self) -> Source:
        """The source of vectors for training."""
        factory = self.factory if self.stages is None else self.stages.variants[0].factory
        options = VectorOptions(
            num_workers=self.num_workers,
            limits=self.limits,
            log=self.log,
            on_failure=self.on_failure,
            stages=self.stages,
        )
        return Source(self.spec.env_id, factory, self.request, options, cluster=self.cluster)

    def make_vector(self, num_envs: int, seed_of: SeedOf) -> Vector:
        """A vector for evaluations."""
        source, stages = replace(self.source, factory=self.factory), None
        if self.played is not None and self.backend.own_vector_form:
            stages = Stages((self.played,))
        return self.backend.make_vector(source, self.spec, num_envs, seed_of, stages=stages)

    def with_backend(self, config: Settled) -> Environment:
        """The environment on the backend of a settled config."""
        backend = load_backend(config.vector.vector)
        return replace(
            self,
            backend=backend,
            num_workers=config.vector.num_workers,
            most_playing=backend.limit_playing(config.num_envs),
        )

    def with_fewer_processes(self, refusal: ResourceRefused) -> Environment:
        """The environment after the system refused processes: half as many workers, then one without threads,
        then this process if its code is trusted. Transitions stay the same. Otherwise raises the refusal."""
        if self.num_workers > 1:
            return replace(self, num_workers=self.num_workers // 2)
        if self.backend.for_waiting:
            return replace(self, backend=load_default(trusted=False))
        if self.backend.runs_here or not names_trusted(self.request):
            raise type(refusal)(f"{refusal}, {SERIAL_REMEDY}") from refusal
        return replace(self, backend=load_default(trusted=True))

    def with_files(self, files: dict[str, str], config: Config, source: EnvSource) -> Environment:
        """The environment with a run's copies of the files that it reads."""
        if not files:
            return self
        kwargs, request = self.kwargs | pick_common(files), self.request
        parts = make_parts(config, kwargs, source, request.calls, files, request.companion_kwargs)
        return replace(self, kwargs=kwargs, **parts._asdict())

    def with_readings(self, run: RunDir) -> Environment:
        """The environment with ambiguous arrays read as in this run, if it has them (`list_readings`)."""
        stored = read_lineage(run).readings
        leaves = tuple(
            replace(leaf, **asdict(stored[leaf.name]))
            if leaf.name in stored and leaf.dtype == "uint8"
            else leaf
            for leaf in self.spec.leaves
        )
        return replace(self, spec=replace(self.spec, leaves=leaves))

    def recipe(self, stage: int | None) -> tuple[EnvRequest, dict[str, Any] | None]:
        """The request and the reset options of a stage's episodes; None: of evaluations."""
        variant = self.played if stage is None or self.stages is None else self.stages.variants[stage]
        return (self.request, None) if variant is None else (variant.request, variant.options)


def list_readings(spec: EnvSpec) -> dict[str, InferredLeaf]:
    """How arrays are read whose meaning was inferred from their values (`env/leaves.py`). Later values may
    suggest another meaning, and a run must be opened as it was made."""
    return {
        leaf.name: InferredLeaf(leaf.kind, leaf.nvec, leaf.start, leaf.channels_last, leaf.open_ended)
        for leaf in spec.leaves
        if leaf.dtype == "uint8" and (leaf.open_ended or may_hold_ids(leaf))
    }


def permit_names(
    config: Config, typed: Callable[[str], bool], *, runs: Iterable[Path] = (), folder: str = ""
) -> tuple[str, ...]:
    """Check the code and the machines that a config names, before any of it is imported or anything connects
    (`store/trusted.py`). typed: whether the user typed the value at a path."""
    permit_kwargs(config.env.env_id, config.env.env_kwargs, typed=typed("env.env_kwargs"))
    for stage in config.env.curriculum.stages if config.env.curriculum else ():
        permit_kwargs(config.env.env_id, stage.kwargs, typed=typed("env.curriculum"))
    named: dict[str, tuple[str, ...]] = {}
    for path in _NAMES:
        value = config.value(path) or ()
        named[path] = (value,) if isinstance(value, str) else name_code(value)
    own = {name for path, names in named.items() if typed(path) for name in names}
    calls = permit([name for names in named.values() for name in names], typed=own, runs=runs, folder=folder)
    network = config.policy.network
    if network and network not in calls:
        judge(network, load_network(network), (nn.Module,), calls)
    return calls


def permit_files(
    config: Config, typed: Callable[[str], bool], runs: Sequence[Path], copies: Iterable[str] = ()
) -> None:
    """Check the files that a new run would copy (`permit_copies`). copies: those of its parent, by the names
    in env-files.json."""
    known, is_typed = set(copies), typed("env.env_kwargs")
    permit_copies(config.env.env_kwargs, runs, typed=is_typed, copied=known)
    stages = config.env.curriculum.stages if config.env.curriculum else ()
    for number, stage in enumerate(stages):
        own = {key for key in stage.kwargs if name_file(number, key) in known}
        permit_copies(stage.kwargs, runs, typed=typed("env.curriculum"), copied=own)


def may_step_here(config: Config, typed: Callable[[str], bool], calls: tuple[str, ...]) -> bool:
    """Whether a config may step its environment in this process, where that can end or hang the run and leave
    processes: if the environment is ours, or the user chose it. calls: names that the user typed or allowed.
    TrustError for a vector form, which only this process can step."""
    name, env = config.vector.vector, config.env
    if name == "auto" or not load_backend(name).runs_here or env.env_id.startswith("<"):  # a Python callable
        return True
    if names_trusted(EnvRequest(env.env_id, wrap=env.wrap)) or {env.env_id, *name_code(env.wrap)} <= {*calls}:
        return True
    is_typed = typed("vector.vector") or (typed("env.env_id") and (typed("env.wrap") or not env.wrap))
    line = f"{', '.join((env.env_id, *env.wrap))} in the training process (vector={name})"
    try:
        permit_request(line, f"a file, not you, asks to step {line}", typed=is_typed)
    except TrustError:
        if load_backend(name).own_vector_form:
            raise
        return False
    return True


def permit_contacts(config: Config, typed: Callable[[str], bool], runs: Iterable[Path]) -> None:
    """Check the cluster and the trackers of a run before anything connects: Ray exchanges pickles, so the
    head of a cluster can run code here, and trackers use the user's key. runs: folders with its config."""
    if config.vector.ray_address not in (None, "auto"):
        contact = f"the Ray cluster at {config.vector.ray_address}"
        permit_contact(contact, typed=typed("vector.ray_address"))
    for run in runs:
        for name in config.run.track:
            permit_contact(name_tracker(name, run), typed=typed("run.track"))


def open_environment(
    config: Config,
    kwargs: dict[str, Any],
    source: EnvSource = None,
    *,
    measure_s: float = 0.0,
    calls: tuple[str, ...] | None = None,
    files: Mapping[str, str] | None = None,
    is_new: bool = False,
    in_child: bool = False,
) -> Environment:
    """Build one environment, read its spec and close it.

    kwargs: those of the config, with files replaced by the run's copies. measure_s: time for steps in a
    worker. calls: see EnvRequest. files: copies for stages. is_new: the environment of a new run or branch,
    so that every stage is probed and the cluster connected. in_child: never step it in this process. A
    companion that it declares is started.
    """
    backend = choose_backend(config, in_child=in_child)
    cluster = connect(config, backend) if is_new else None
    curriculum = config.env.curriculum if is_new else None
    limits = Limits(timeout_s=config.vector.env_timeout, max_restarts=config.vector.max_restarts)

    def probe(companion_kwargs: dict[str, Any]) -> Environment:
        parts = make_parts(config, kwargs, source, calls, files or {}, companion_kwargs)
        probed = Source(
            config.env.env_id,
            parts.factory,
            parts.request if source is None else None,
            VectorOptions(limits=limits, stages=parts.stages if backend.own_vector_form else None),
            max_sequence=config.env.max_sequence,
        )
        if curriculum is not None and not backend.own_vector_form:
            spec, pace = probe_stages(
                curriculum,
                parts,
                lambda factory: backend.probe(replace(probed, factory=factory), measure_s),
            )
        else:
            spec, pace = backend.probe(probed, measure_s)
        if curriculum is not None:
            check_metrics(curriculum, spec)
        spec = load_algorithm(config.run.algo).adapt_actions(spec)
        chosen = choose_backend(config, spec, in_child=in_child)
        n_envs = config.vector.n_envs
        return Environment(
            spec=spec,
            backend=chosen,
            num_workers=choose_num_workers(config, chosen, spec, pace if shares_cores(config) else None),
            limits=limits,
            pace=pace,
            # A cluster that the user names is used, even if this machine would be faster.
            rivals=load_rivals(spec) if config.vector.vector == "auto" and not chosen.needs_cluster else (),
            kwargs=kwargs,
            cluster=cluster,
            most_playing=chosen.limit_playing(n_envs) if isinstance(n_envs, int) else None,
            evaluation_steps=compute_evaluation_steps(config),
            **parts._asdict(),
        )

    environment, companion = with_companion(probe)
    return replace(environment, companion=companion)


def compute_evaluation_steps(config: Config) -> int:
    """The limit of evaluation episodes that have none: together they take as many steps as training, so that
    the evaluation of a slow environment ends."""
    steps = config.run.timesteps // config.evaluation.eval_episodes
    return min(max(steps, _LEAST_EVALUATION_STEPS), EVALUATION_STEPS)


def open_run_environment(run: RunDir, config: Config, source: EnvSource = None) -> Environment:
    """The environment of a run, with the run's copies of its files; RunStateError if its spaces changed."""
    check_importable(run, config, source)
    lineage, files = read_lineage(run), read_files(run)
    # The user's modules are in the folder where the run was started.
    calls = permit_names(config, lambda path: False, runs=[run.path], folder=lineage.folder)
    kwargs = config.env.env_kwargs | pick_common(files)
    in_child = not may_step_here(config, lambda path: False, calls)
    opened = open_environment(config, kwargs, source, calls=calls, files=files, in_child=in_child)
    environment = opened.with_readings(run)
    signature = environment.spec.signature
    if lineage.env_signature != signature:
        raise RunStateError(
            f"the spaces of environment {environment.spec.env_id} have changed since run {run.name} was made,"
            f" or this version reads them differently (signature {lineage.env_signature} -> {signature});"
            " a policy can't be carried over"
        )
    return environment


def check_importable(run: RunDir, config: Config, source: EnvSource) -> None:
    """Raise UsageError for a run whose environment only its caller has."""
    if source is None and config.env.env_id.startswith("<"):
        raise UsageError(
            f"run {run.name} was trained on a callable that can't be imported ({config.env.env_id}); pass it"
            " as env= to mg.resume, mg.branch or mg.load in Python"
        )


def choose_backend(config: Config, spec: EnvSpec | None = None, *, in_child: bool = False) -> Backend:
    """The backend of a config. The user's environment runs in this process only on request. spec: of the
    probed environment, since one with coroutines waits. in_child: not even on request."""
    if config.vector.vector != "auto":
        backend = load_backend(config.vector.vector)
        return load_default(trusted=False) if in_child and backend.runs_here else backend
    if config.vector.ray_address is not None:
        return load_for_cluster()
    if spec is not None and spec.coroutines != "none":
        return load_for_coroutines()
    trusted = names_trusted(EnvRequest(config.env.env_id, wrap=config.env.wrap))
    return load_default(trusted=trusted and config.vector.num_workers == "auto")


def shares_cores(config: Config) -> bool:
    """Whether requested processes may be more than the cores, if the environments turn out to wait."""
    if config.vector.vector == "auto" or config.vector.num_workers != "auto":
        return False
    backend = load_backend(config.vector.vector)
    return backend.chooses_workers and not backend.for_waiting and config.num_envs > count_cpus(backend)


def choose_num_workers(config: Config, backend: Backend, spec: EnvSpec, pace: Pace | None = None) -> int:
    """The workers of a run: one per usable core, or many for environments that wait, or one in which all of
    them wait. pace: measured, if the backend was requested."""
    if not backend.chooses_workers:
        return 1
    wanted = config.vector.num_workers
    return backend.choose_processes(
        config.num_envs,
        None if wanted == "auto" else wanted,
        count_cpus(backend),
        waits=spec.declares_waiting or (pace is not None and pace.waits),
    )


def count_groups(config: Config, backend: Backend, num_workers: int) -> int:
    """The least number of acting groups: one per worker. Environments that wait form more: each its own with
    first-ready segments, so that a slow one delays only itself, else a few that act in turn."""
    if not backend.for_waiting:
        return num_workers
    if config.vector.blocks == "first_ready":
        return min(config.num_envs, _MAX_GROUPS)
    return max(num_workers, backend.count_groups(config.num_envs))


def choose_acting_rows(num_envs: int, num_groups: int) -> int:
    """Environments per group, for at least this many groups; equal groups if they are not much smaller."""
    share = num_envs // num_groups
    fitting = choose_batch_size(num_envs, share)
    return fitting if 2 * fitting >= share else share
