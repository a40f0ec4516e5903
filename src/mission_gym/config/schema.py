"""The schema: every field of a run, its type, bounds, default and the one text that describes it.

Field names equal their flags: `vector.n_envs` is `--n-envs`. They are unique but for the sections of the
algorithms, which come from above (`fields`): `--gamma` means that of the chosen one.
Text is accepted wherever a flag or a file may hold it: `500k`, `3e-4`, `5m`, `1024,512`, `none`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from mission_gym.config.comparisons import Comparison, parse_comparison
from mission_gym.config.curriculum import LAST, CurriculumField
from mission_gym.config.types import (
    NONE,
    SWITCH,
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
    value_error,
)
from mission_gym.errors import ConfigError

if TYPE_CHECKING:
    from mission_gym.config.layers import Resolved
    from mission_gym.config.rules import Unused

DEFAULT_ENV_ID = "mission_gym/Capture-v0"


def parse_stop_when(text: str) -> Comparison:
    """Take `captured>=0.8` or `return>=475` apart. It is reached when the lower bound of the 95 % interval
    holds."""
    rule = parse_comparison(text)
    if rule is None or rule.op not in (">=", ">"):
        raise ConfigError(f"{text!r} is not a stop rule; write it like captured>=0.8 or return>=475")
    return rule


def _stop_when(text: str) -> str:
    parse_stop_when(text)
    return text


StopText = Annotated[str, AfterValidator(value_error(_stop_when))]


def _kernel_name(value: Any) -> Any:
    """The compiled kernel was called `numpy` in configs before 0.1."""
    return "compiled" if value == "numpy" else value


class EnvSection(Section):
    """Which environment is trained."""

    env_id: str = Field(
        DEFAULT_ENV_ID, min_length=1, description="Gymnasium id, module:Id or module:callable."
    )
    env_kwargs: Kwargs = Field({}, description="Arguments of the environment, key=value with YAML scalars.")
    curriculum: CurriculumField = Field(
        None,
        description="Stages of the environment, one after the other: a shipped curriculum's name, or a YAML"
        " file; see curricula.md.",
    )
    wrap: Wrappers = Field(
        (),
        description="Wrappers, the innermost first: module:callable, module:callable(size=4), or a short name"
        " such as frame-stack:4 (mission-gym wrappers lists them).",
    )
    max_sequence: Whole = Field(
        64,
        ge=1,
        description="Elements that are read of an observed Sequence; longer ones are cut and counted.",
    )


class VectorSection(Section):
    """How environments are stepped."""

    vector: Annotated[str, OneOf("backends", "auto")] = Field("auto", description="Backend:")
    blocks: Literal["all", "first_ready"] = Field(
        "all",
        description="What a rollout is made of: all, one segment of every environment, or first_ready, those"
        " that are finished first, so that a slow environment does not stall the rest.",
    )
    n_envs: FromOneOrAuto = Field(
        8,
        description="Environments stepped together; the rollout grows with them. auto: measured, and the"
        " rollout is held.",
    )
    num_agents: Whole = Field(
        1,
        ge=1,
        description="Agents of each environment, which share the policy; each has a row of the rollout, and"
        " its steps are counted. Found when the environment is looked at.",
    )
    num_workers: FromOneOrAuto = Field(
        "auto", description="Worker processes. auto: one per usable core, of this machine or of a cluster."
    )
    ray_address: Annotated[str | None, NONE] = Field(
        None,
        description="Ray cluster to train on: auto, the one that this machine is a node of, or HOST:PORT of"
        " its head; vector=auto then means ray. none: vector=ray starts one of this machine.",
    )
    actor_workers: Annotated[Whole | None, NONE] = Field(
        None,
        ge=1,
        description="Workers of each Ray actor, of num_workers on the whole cluster; it asks for as many"
        " CPUs. none: as many as the smallest node has.",
    )
    env_timeout: Duration = Field(
        60.0, gt=0, description="Time a step may take before its worker is replaced; a reset may take 5m."
    )
    max_restarts: Whole = Field(
        5, ge=0, description="Restarts of an environment without a finished episode in between."
    )


class PolicySection(Section):
    """The networks and what they are fed."""

    network_arch: LayerSizes = Field(
        (64, 64), min_length=1, description="Widths of the hidden layers of actor and critic."
    )
    activation: Literal["tanh", "relu", "elu"] = Field("tanh", description="Activation of the hidden layers.")
    network: Annotated[Importable | None, NONE] = Field(
        None, description="Your own network, as module:callable."
    )
    critic_keys: Names = Field(
        (),
        description="Keys of a Dict observation that the critic alone sees, as a.b if nested.",
    )
    normalize_obs: bool = Field(True, description="Scale vector observations by their running statistics.")
    normalize_returns: bool = Field(
        True, description="Learn values in units of the running deviation of their targets; rewards stay raw."
    )
    log_std_init: Number = Field(0.0, description="First log-deviation of continuous actions.")


class ComputeSection(Section):
    """Where the work is done."""

    device: Device = Field(
        "auto",
        description="Where the learner computes; cuda:1 is the second card. auto: where learning was measured"
        " fastest.",
    )
    threads: FromOneOrAuto = Field("auto", description="Threads of the learner.")
    acting: Literal["auto", "numpy", "torch"] = Field("auto", description="Which form of the policy acts.")
    acting_rows: FromOneOrAuto = Field(
        "auto", description="Environments acted for at once; part of the numbers of a run."
    )
    kernel: Annotated[Literal["auto", "compiled", "torch"], BeforeValidator(_kernel_name)] = Field(
        "auto",
        description="What makes the gradient steps: torch, or its compiled twin, for MLPs on the CPU, which"
        " proves its numbers against torch before it is used.",
    )
    overlap: Annotated[Literal["auto", "on", "off"], SWITCH] = Field(
        "auto",
        description="Collect the next rollout while learning from this one, one update behind. auto: where"
        " environments wait, a device learns, or with DQN workers leave a core.",
    )
    tune: bool = Field(
        True,
        description="Measure before a long run, and choose what is left open: backend, workers, threads,"
        " device, and without shipped settings or a preset the number of environments.",
    )
    precision: Literal["auto", "float32", "bf16"] = Field(
        "auto",
        description="Of the network's products in the torch kernel; weights, optimizer and probabilities stay"
        " float32. auto: bf16 where the device has it and it was measured faster.",
    )


class EvaluationSection(Section):
    """How often and how long the policy is evaluated."""

    eval_freq: WholeOrAuto = Field(
        "auto",
        description="Steps between evaluations; 0 never. auto: 20000, at least timesteps/50, and so rare that"
        " evaluations take about a tenth of the time.",
    )
    eval_episodes: Whole = Field(20, ge=1, description="Episodes of an evaluation.")
    eval_stage: str = Field(
        LAST,
        min_length=1,
        description="Stage of the curriculum that evaluations are on: last, a number, a name.",
    )


class CheckpointSection(Section):
    """When checkpoints are saved and which are kept."""

    checkpoint_freq: FromOneOrAuto = Field(
        "auto", description="Steps between checkpoints. auto: 20000, at least timesteps/20."
    )
    keep_last: Whole = Field(3, ge=1, description="Newest checkpoints that are kept.")
    keep_best: Whole = Field(
        2,
        ge=0,
        description="Best evaluated checkpoints that are kept; three until the run ends, to be played again.",
    )
    checkpoint_budget_mb: Whole = Field(2000, ge=1, description="Disk space of all checkpoints, in MB.")


class RunSection(Section):
    """What the run is and when it ends."""

    algo: Annotated[str, OneOf("algorithms")] = Field("ppo", description="Learning algorithm.")
    timesteps: Whole = Field(
        1_000_000, ge=1, description="Steps to train, rounded up to whole rollouts: 500k, 50M, 1e6."
    )
    seed: Whole = Field(0, ge=0, description="Seed of every random stream of the run.")
    stop_when: Annotated[StopText | None, NONE] = Field(
        None, description="End early when an evaluation's lower bound gets there: captured>=0.8, return>=475."
    )
    max_time: Annotated[Duration | None, NONE] = Field(
        None, gt=0, description="End after this time: 90s, 5m, 2h. none: no limit."
    )
    run_name: Annotated[RunName | None, NONE] = Field(
        None, description="Name of the run. none: made from the environment's id."
    )
    runs_dir: str = Field("runs", min_length=1, description="Folder that holds the runs.")
    notes: str = Field("", description="Free text kept with the run.")
    tensorboard: bool = Field(True, description="Write TensorBoard event files.")
    track: Annotated[Names, OneOf("trackers")] = Field(
        (), description="Experiment trackers that also receive the metrics; each has its own thread."
    )
    log_interval: FromOneOrAuto = Field(
        "auto", description="Updates between rows of the metrics stream. auto: about 1000 rows at most."
    )


Scale = Literal["linear", "log", "gap", "power"]


class Span(NamedTuple):
    """A range that a sweep searches. gap: the distance to 1 on a log scale; power: powers of two."""

    low: float
    high: float
    scale: Scale = "linear"


class AlgorithmSection(Section):
    """What every algorithm's section has, and what the rules ask of it. The rest of it is its own."""

    if TYPE_CHECKING:  # each section declares them in their places, with its own defaults
        n_steps_per_env: int
        batch_size: int | Literal["auto"]
        gamma: float
        learning_rate: float

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate",)  # fields that may fall to their `_final`
    COSTS: ClassVar[frozenset[str]] = frozenset()  # what the cost of a step of training depends on
    EFFECTS: ClassVar[Mapping[str, str]] = {}  # by path: what a change means for what was learned
    SEARCH: ClassVar[Mapping[str, Span]] = {}  # fields that a sweep searches, where it is not told which
    UNUSED: ClassVar[tuple[Unused, ...]] = ()  # explicit values that a run may not use
    PROFILE: ClassVar[Mapping[str, Any]] = {}  # by path: replaces defaults of shared sections
    IMAGE_PROFILE: ClassVar[Mapping[str, Any]] = {}  # by path: the same for image observations
    RETIRED: ClassVar[Mapping[str, str]] = {}  # fields of earlier versions' files: what to use now
    SETTLED: ClassVar[type[SettledAlgorithm]]  # the same section without `auto`

    @classmethod
    def fit(cls, resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
        """Resolve what is `auto` by arithmetic, and add a problem for what does not fit together."""
        return resolved

    def scheduled_names(self) -> list[str]:
        """What moves with the absolute step over the whole run."""
        return [name for name in self.SCHEDULED if getattr(self, f"{name}_final") is not None]


class SettledAlgorithm(AlgorithmSection):
    """The section of an algorithm in a settled config."""

    if TYPE_CHECKING:
        batch_size: int


class Config(Section):
    """Every value of a run, by section; `auto` may be left. `layers` builds it."""

    env: EnvSection
    vector: VectorSection
    algorithm: AlgorithmSection  # that of the chosen one; in files and paths under its own name
    policy: PolicySection
    compute: ComputeSection
    evaluation: EvaluationSection
    checkpoints: CheckpointSection
    run: RunSection

    @property
    def num_envs(self) -> int:
        """Environments, whose number is known by now: `auto` was left to the plan."""
        assert isinstance(self.vector.n_envs, int), "n_envs=auto was not planned"
        return self.vector.n_envs

    @property
    def num_rows(self) -> int:
        """Rows that are stepped together: environments, or all their agents."""
        return self.num_envs * self.vector.num_agents

    @property
    def rollout_size(self) -> int:
        """Steps of one rollout over all rows."""
        return self.num_rows * self.algorithm.n_steps_per_env

    def sections(self) -> dict[str, Section]:
        """The sections under the names that files and paths give them."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return {self.run.algo if name == "algorithm" else name: section for name, section in own.items()}

    def value(self, path: str) -> Any:
        """Return the value at `section.field`."""
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
    """A config in which no `auto` is left: what a run is made from, and what its config.yaml holds."""

    vector: SettledVector
    algorithm: SettledAlgorithm
    compute: SettledCompute
    evaluation: SettledEvaluation
    checkpoints: SettledCheckpoints
    run: SettledRun


def settle_types(config: Config) -> Settled:
    """The same values in the types that know no `auto`; ConfigError if a damaged file leaves one."""
    values: dict[str, Any] = {}
    for name, field in Settled.model_fields.items():
        section = getattr(config, name)
        kind: Any = section.SETTLED if name == "algorithm" else field.annotation
        left = [key for key, value in section if value == "auto"]
        if left:
            raise ConfigError(
                f"{name} leaves {', '.join(left)} open, which the config of a run never does; restore its"
                " config.yaml from a copy, or start anew"
            )
        values[name] = kind.model_construct(**dict(section))
    return Settled.model_construct(**values)
