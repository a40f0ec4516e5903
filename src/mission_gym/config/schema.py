"""The schema: every field of a run with its type, bounds, default and description.

Field names equal their flags: `vector.n_envs` is `--n-envs`. Names are unique, except among the sections of
the algorithms, which `fields` adds: `--gamma` belongs to the chosen algorithm. Flags and files may write
values as text: `500k`, `3e-4`, `5m`, `1024,512`, `none`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field

from mission_gym.config.curriculum import LAST, CurriculumField
from mission_gym.config.types import (
    NONE,
    SWITCH,
    Comparison,
    Device,
    Duration,
    FromOneOrAuto,
    Importable,
    Kwargs,
    LayerSizes,
    Names,
    Number,
    OneOf,
    RunName,
    Section,
    Whole,
    WholeOrAuto,
    Wrappers,
    parse_comparison,
    value_error,
)
from mission_gym.errors import ConfigError

if TYPE_CHECKING:
    from mission_gym.config.layers import Resolved
    from mission_gym.config.rules import Unused

DEFAULT_ENV_ID = "mission_gym/Capture-v0"


def parse_stop_when(text: str) -> Comparison:
    """Parse `captured>=0.8` or `return>=475`; a lower bound must satisfy it."""
    rule = parse_comparison(text)
    if rule is None or rule.op not in (">=", ">"):
        raise ConfigError(f"{text!r} is not a stop rule; write it like captured>=0.8 or return>=475")
    return rule


StopText = Annotated[str, AfterValidator(value_error(lambda text: parse_stop_when(text) and text))]


class EnvSection(Section):
    """The environment."""

    env_id: str = Field(
        DEFAULT_ENV_ID, min_length=1, description="Gymnasium id, module:Id or module:callable."
    )
    env_kwargs: Kwargs = Field(
        {},
        description="Keyword arguments of the environment: key=value, with YAML scalars, or key=env:NAME for"
        " an environment variable, whose value is not stored.",
    )
    curriculum: CurriculumField = Field(
        None,
        description="Curriculum: the name of a shipped one, or a YAML file; see curricula.md.",
    )
    wrap: Wrappers = Field(
        (),
        description="Wrappers, innermost first: module:callable, module:callable(size=4), or a short name,"
        " frame-stack:4 (`mission-gym wrappers` lists them).",
    )
    max_sequence: Whole = Field(
        64,
        ge=1,
        description="Elements kept of an observed Sequence; longer ones are truncated and counted.",
    )


class VectorSection(Section):
    """The vector of environments."""

    vector: Annotated[str, OneOf("backends", "auto")] = Field("auto", description="Backend:")
    blocks: Literal["all", "first_ready"] = Field(
        "all",
        description="Segments of a rollout: one of every environment (all), or those that finish first"
        " (first_ready), so that a slow environment does not stall the others.",
    )
    n_envs: FromOneOrAuto = Field(
        8,
        description="Number of environments; the rollout grows with it. auto: measured, with a rollout of the"
        " same size.",
    )
    num_agents: Whole = Field(
        1,
        ge=1,
        description="Agents of each environment, which share the policy. Each has its own column in the"
        " rollout, and its steps are counted. Read from the environment.",
    )
    num_workers: FromOneOrAuto = Field(
        "auto",
        description="Worker processes. auto: one per usable core of this machine or the cluster, more for"
        " environments that wait.",
    )
    ray_address: Annotated[str | None, NONE] = Field(
        None,
        description="Ray cluster: auto (the one of this machine) or HOST:PORT of its head; vector=auto"
        " then uses ray. none: vector=ray starts a cluster on this machine.",
    )
    actor_workers: Annotated[Whole | None, NONE] = Field(
        None,
        ge=1,
        description="Workers per Ray actor, out of num_workers in total; an actor reserves one CPU for each."
        " none: the CPUs of the smallest node.",
    )
    env_timeout: Duration = Field(
        60.0, gt=0, description="Time limit of a step, after which its worker is replaced; a reset has 5m."
    )
    max_restarts: Whole = Field(
        5, ge=0, description="Restarts in a row, with no finished episode between them, before the run fails."
    )


class PolicySection(Section):
    """The networks and their inputs."""

    network_arch: LayerSizes = Field(
        (64, 64), min_length=1, description="Widths of the hidden layers, of actor and critic each."
    )
    activation: Literal["tanh", "relu", "elu"] = Field("tanh", description="Activation of the hidden layers.")
    network: Annotated[Importable | None, NONE] = Field(
        None, description="Custom network, as module:callable."
    )
    recurrent: Literal["none", "gru", "lstm", "mingru"] = Field(
        "none",
        description="Memory, for observations that do not show the whole state: a recurrent cell before the"
        " hidden layers, shared by actor and critic.",
    )
    recurrent_size: Whole = Field(128, ge=1, description="Units of the memory.")
    critic_keys: Names = Field(
        (), description="Keys of a Dict observation for the critic only; nested ones as a.b."
    )
    normalize_obs: bool = Field(True, description="Normalize vector observations by running mean and std.")
    normalize_returns: bool = Field(
        True, description="Learn values in units of the running std of their targets; rewards stay raw."
    )
    log_std_init: Number = Field(0.0, description="Initial log std of continuous actions.")


class ComputeSection(Section):
    """Device, kernel and threads."""

    device: Device = Field(
        "auto",
        description="Device of the learner; cuda:1 is the second GPU. auto: the fastest in a measurement.",
    )
    threads: FromOneOrAuto = Field(
        "auto", description="CPU threads of the learner; auto respects OMP_NUM_THREADS and MKL_NUM_THREADS."
    )
    acting: Literal["auto", "numpy", "torch"] = Field(
        "auto", description="What computes actions: NumPy in the workers, or torch in the training process."
    )
    acting_rows: FromOneOrAuto = Field(
        "auto",
        description="Observations per policy call, one per agent; changes the random numbers of a run.",
    )
    kernel: Literal["auto", "compiled", "torch"] = Field(
        "auto",
        description="Code of the gradient steps: torch, or compiled loops for MLPs on the CPU, which are"
        " verified against torch before they are used.",
    )
    overlap: Annotated[Literal["auto", "on", "off"], SWITCH] = Field(
        "auto",
        description="Collect the next rollout during the update, with weights that are one update old. auto:"
        " if environments wait, an accelerator learns, or, with a replay, the workers leave a core free.",
    )
    tune: bool = Field(
        True,
        description="Before a long run, measure and choose backend, workers, threads and device if they are"
        " auto, and n_envs if neither shipped settings nor a preset set it.",
    )
    precision: Literal["auto", "float32", "bf16"] = Field(
        "auto",
        description="Precision of matrix products in the torch kernel; weights, optimizer and probabilities"
        " stay float32. auto: bf16 if the device supports it and a measurement shows it is faster.",
    )


class EvaluationSection(Section):
    """Evaluations during training."""

    eval_freq: WholeOrAuto = Field(
        "auto",
        description="Steps between evaluations (0 disables them). auto: timesteps/50, but at least 20000"
        " (timesteps/5 for short runs), and more if evaluations would take over a tenth of the time.",
    )
    eval_episodes: Whole = Field(20, ge=1, description="Episodes per evaluation.")
    eval_stage: str = Field(
        LAST, min_length=1, description="Stage of the curriculum for evaluations: last, a number or a name."
    )
    retest_episodes: Whole = Field(
        0,
        ge=0,
        description="Extra evaluation episodes after training, on report seeds used nowhere else (0 disables"
        " them). Sweeps set it for their re-tests.",
    )


class CheckpointSection(Section):
    """Checkpoints."""

    checkpoint_freq: FromOneOrAuto = Field(
        "auto", description="Steps between checkpoints. auto: 20000 or timesteps/20, whichever is larger."
    )
    keep_last: Whole = Field(3, ge=1, description="Newest checkpoints to keep.")
    keep_best: Whole = Field(
        2,
        ge=0,
        description="Best checkpoints to keep, by evaluation; at least three until the run ends and the best"
        " ones are evaluated again.",
    )
    checkpoint_budget_mb: Whole = Field(2000, ge=1, description="Disk space for all checkpoints, in MB.")


class RunSection(Section):
    """The run as a whole."""

    algo: Annotated[str, OneOf("algorithms")] = Field("ppo", description="Algorithm.")
    timesteps: Whole = Field(
        1_000_000, ge=1, description="Steps to train: 500k, 50M, 1e6; rounded up to whole rollouts."
    )
    seed: Whole = Field(
        0,
        ge=0,
        description="Seed of all random streams. Runs started side by side without it get different ones.",
    )
    stop_when: Annotated[StopText | None, NONE] = Field(
        None, description="Stop when captured>=0.8 or return>=475 holds, confirmed on 100 further episodes."
    )
    max_time: Annotated[Duration | None, NONE] = Field(
        None, gt=0, description="Time limit: 90s, 5m, 2h. none: no limit."
    )
    run_name: Annotated[RunName | None, NONE] = Field(
        None, description="Name of the run. none: derived from the environment id."
    )
    runs_dir: str = Field("runs", min_length=1, description="Folder of the runs.")
    notes: str = Field("", description="Free text, stored with the run.")
    tensorboard: bool = Field(True, description="Write TensorBoard event files.")
    track: Annotated[Names, OneOf("trackers")] = Field(
        (), description="Experiment trackers that also receive the metrics, each from its own thread."
    )
    log_interval: FromOneOrAuto = Field(
        "auto", description="Updates between rows of the metrics stream. auto: at most about 1000 rows."
    )


Scale = Literal["linear", "log", "gap", "power"]


class SearchRange(NamedTuple):
    """A range that a sweep searches. gap: 1 - value on a log scale; power: powers of two."""

    low: float
    high: float
    scale: Scale = "linear"


class AlgorithmSection(Section):
    """Base class of the algorithms' sections: the fields that all of them have, and facts for the rules."""

    if TYPE_CHECKING:  # each section declares these fields with its own defaults
        n_steps_per_env: int
        batch_size: int | Literal["auto"] | None
        gamma: float
        learning_rate: float

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate",)  # fields with a `_final` value
    COSTS: ClassVar[frozenset[str]] = frozenset()  # fields that the cost of a training step depends on
    MEASURED: ClassVar[tuple[str, ...]] = ()  # fields whose `auto` follows from measured costs
    EFFECTS: ClassVar[Mapping[str, str]] = {}  # by field: the effect of a change on a branch
    SEARCH: ClassVar[Mapping[str, SearchRange]] = {}  # fields that a sweep searches by default
    UNUSED: ClassVar[tuple[Unused, ...]] = ()  # explicit values that a run may not use
    PROFILE: ClassVar[Mapping[str, Any]] = {}  # by path: replaces defaults of shared sections
    IMAGE_PROFILE: ClassVar[Mapping[str, Any]] = {}  # by path: the same for image observations
    WAITING_PROFILE: ClassVar[Mapping[str, Any]] = {}  # by path: sizes for environments that wait on a loop
    SETTLED: ClassVar[type[SettledAlgorithm] | None] = None  # the section without `auto`, if it has any

    @classmethod
    def fit(cls, resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
        """Resolve `auto` values by arithmetic, and add a problem for values that contradict each other."""
        return resolved

    def open_names(self) -> list[str]:
        """The fields that a new run settles by measured costs."""
        return [name for name in self.MEASURED if getattr(self, name) == "auto"]

    def scheduled_names(self) -> list[str]:
        """The fields that change with the step over the whole run."""
        return [name for name in self.SCHEDULED if getattr(self, f"{name}_final") is not None]


class SettledAlgorithm(AlgorithmSection):
    """An algorithm's section in a settled config."""

    if TYPE_CHECKING:
        batch_size: int


class Config(Section):
    """Every value of a run, by section; values may still be `auto`. `layers` builds it."""

    env: EnvSection
    vector: VectorSection
    algorithm: AlgorithmSection  # of the chosen one; files and paths use its name
    policy: PolicySection
    compute: ComputeSection
    evaluation: EvaluationSection
    checkpoints: CheckpointSection
    run: RunSection

    @property
    def num_envs(self) -> int:
        """The number of environments, after the plan has replaced `auto`."""
        assert isinstance(self.vector.n_envs, int), "n_envs=auto was not planned"
        return self.vector.n_envs

    @property
    def num_columns(self) -> int:
        """Columns of a rollout: one per environment, or per agent of each."""
        return self.num_envs * self.vector.num_agents

    @property
    def rollout_size(self) -> int:
        """Steps of one rollout, over all columns."""
        return self.num_columns * self.algorithm.n_steps_per_env

    def sections(self) -> dict[str, Section]:
        """The sections by the names that files and paths use."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return {self.run.algo if name == "algorithm" else name: section for name, section in own.items()}

    def value(self, path: str) -> Any:
        """The value at `section.field`."""
        section, name = path.split(".")
        return getattr(self.algorithm if section == self.run.algo else getattr(self, section), name)


class SettledVector(VectorSection):
    n_envs: int
    num_workers: int


class SettledCompute(ComputeSection):
    threads: int
    acting: Literal["numpy", "torch"]
    acting_rows: int
    overlap: Literal["on", "off"]


class SettledEvaluation(EvaluationSection):
    eval_freq: int


class SettledCheckpoints(CheckpointSection):
    checkpoint_freq: int


class SettledRun(RunSection):
    log_interval: int


class Settled(Config):
    """A config without `auto`: a run is built from it and stores it in config.yaml."""

    vector: SettledVector
    algorithm: SettledAlgorithm
    compute: SettledCompute
    evaluation: SettledEvaluation
    checkpoints: SettledCheckpoints
    run: SettledRun


def settle_types(config: Config) -> Settled:
    """Return the values in the types without `auto`; ConfigError if one is left, as in a damaged file."""
    values: dict[str, Any] = {}
    for name, field in Settled.model_fields.items():
        section = getattr(config, name)
        kind: Any = section.SETTLED or type(section) if name == "algorithm" else field.annotation
        left = [key for key, value in section if value == "auto"]
        if left:
            raise ConfigError(
                f"{', '.join(left)} of section {name} is auto, and a run's config has no auto values; restore"
                " its config.yaml from a copy, or start a new run"
            )
        values[name] = kind.model_construct(**dict(section))
    return Settled.model_construct(**values)
