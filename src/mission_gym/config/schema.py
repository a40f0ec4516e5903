"""The schema: every field of a run, its type, bounds, default and the one text that describes it.

Field names equal their flags: `vector.n_envs` is `--n-envs`. They are unique but for the sections of the
algorithms: `--gamma` means that of the chosen one.
Text is accepted wherever a flag or a file may hold it: `500k`, `3e-4`, `5m`, `1024,512`, `none`.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import AfterValidator, Field

from mission_gym.config.dqn import DqnSection
from mission_gym.config.types import (
    NONE,
    SWITCH,
    Duration,
    FromOneOrAuto,
    Importable,
    Importables,
    Kwargs,
    LayerSizes,
    Number,
    NumEnvs,
    RunName,
    Section,
    Whole,
    WholeOrAuto,
    value_error,
)
from mission_gym.errors import ConfigError

ALGORITHMS = ("ppo", "dqn")  # each with a section of its own
DEFAULT_ENV_ID = "mission_gym/Capture-v0"
_STOP_WHEN = re.compile(
    r"\s*([^<>=]*[^<>=\s])\s*(>=|>)\s*([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)\s*", re.IGNORECASE
)
_OPERATORS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, ">": operator.gt}


class StopRule(NamedTuple):
    """`stop_when`, taken apart."""

    name: str  # "return" or an outcome
    op: str
    number: float

    def reached(self, low: float) -> bool:
        """Tell whether the lower bound of the 95 % interval satisfies the rule."""
        return _OPERATORS[self.op](low, self.number)


def parse_stop_when(text: str) -> StopRule:
    """Take `captured>=0.8` or `return>=475` apart."""
    match = _STOP_WHEN.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a stop rule; write it like captured>=0.8 or return>=475")
    return StopRule(match[1], match[2], float(match[3]))


def _stop_when(text: str) -> str:
    parse_stop_when(text)
    return text


StopText = Annotated[str, AfterValidator(value_error(_stop_when))]


class EnvSection(Section):
    """Which environment is trained."""

    env_id: str = Field(
        DEFAULT_ENV_ID, min_length=1, description="Gymnasium id, module:Id or module:callable."
    )
    env_kwargs: Kwargs = Field({}, description="Arguments of the environment, key=value with YAML scalars.")
    wrap: Importables = Field((), description="Wrappers as module:callable, the innermost first.")


class VectorSection(Section):
    """How environments are stepped."""

    vector: Literal["auto", "serial", "workers", "threads", "batched"] = Field(
        "auto",
        description="Backend: serial steps in this process, workers in several others, threads in one other"
        " (for environments that wait), batched takes a vector environment.",
    )
    blocks: Literal["all", "first_ready"] = Field(
        "all",
        description="What a rollout is made of: all, one segment of every environment, or first_ready, those"
        " that are finished first, so that a slow environment does not stall the rest.",
    )
    n_envs: NumEnvs = Field(
        8,
        description="Environments stepped together; the rollout grows with them. auto: measured, and the"
        " rollout is held.",
    )
    num_workers: FromOneOrAuto = Field("auto", description="Worker processes. auto: one per usable core.")
    env_timeout: Duration = Field(
        60.0, gt=0, description="Time a step may take before its worker is replaced; a reset may take 5m."
    )
    max_restarts: Whole = Field(
        5, ge=0, description="Restarts of an environment without a finished episode in between."
    )


class PpoSection(Section):
    """The hyperparameters of PPO."""

    n_steps_per_env: Whole = Field(128, ge=1, description="Steps of each environment in a rollout.")
    batch_size: FromOneOrAuto = Field(
        "auto", description="Rows of a minibatch; divides the rollout. auto: about a quarter of it."
    )
    n_epochs: Whole = Field(10, ge=1, description="Passes over each rollout.")
    learning_rate: Number = Field(3e-4, gt=0, description="Step size of Adam.")
    learning_rate_final: Annotated[Number | None, NONE] = Field(
        None, ge=0, description="Learning rate at the last step, reached linearly. none: constant."
    )
    gamma: Number = Field(0.99, ge=0, le=1, description="Discount of a reward one step later.")
    gae_lambda: Number = Field(
        0.95, ge=0, le=1, description="Decay of the advantage's trace: 0 trusts values, 1 trusts returns."
    )
    clip_range: Number = Field(0.2, gt=0, description="How far the probability ratio may leave 1.")
    clip_range_final: Annotated[Number | None, NONE] = Field(
        None, ge=0, description="Clip range at the last step, reached linearly. none: constant."
    )
    ent_coef: Number = Field(0.0, ge=0, description="Weight of the entropy bonus, for exploration.")
    ent_coef_final: Annotated[Number | None, NONE] = Field(
        None, ge=0, description="Entropy weight at the last step, reached linearly. none: constant."
    )
    vf_coef: Number = Field(0.5, ge=0, description="Weight of the value loss.")
    max_grad_norm: Number = Field(0.5, gt=0, description="Norm to which gradients are clipped.")
    target_kl: Annotated[Number | None, NONE] = Field(
        None, gt=0, description="KL divergence that ends an update after the running epoch. none: no limit."
    )
    normalize_advantage: bool = Field(
        True, description="Scale advantages to mean 0, deviation 1 per minibatch."
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
    normalize_obs: bool = Field(True, description="Scale vector observations by their running statistics.")
    normalize_returns: bool = Field(True, description="Scale rewards by the deviation of discounted returns.")
    log_std_init: Number = Field(0.0, description="First log-deviation of continuous actions.")


class ComputeSection(Section):
    """Where the work is done."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="Where the learner computes. auto: where a gradient step was measured fastest."
    )
    threads: FromOneOrAuto = Field("auto", description="Threads of the learner.")
    acting: Literal["auto", "numpy", "torch"] = Field("auto", description="Which form of the policy acts.")
    acting_rows: FromOneOrAuto = Field(
        "auto", description="Environments acted for at once; part of the numbers of a run."
    )
    kernel: Literal["auto", "numpy", "torch"] = Field(
        "auto", description="Which update kernel the learner runs."
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
        "auto", description="Steps between evaluations; 0 never. auto: 20000, at least timesteps/50."
    )
    eval_episodes: Whole = Field(20, ge=1, description="Episodes of an evaluation.")


class CheckpointSection(Section):
    """When checkpoints are saved and which are kept."""

    checkpoint_freq: FromOneOrAuto = Field(
        "auto", description="Steps between checkpoints. auto: 20000, at least timesteps/20."
    )
    keep_last: Whole = Field(3, ge=1, description="Newest checkpoints that are kept.")
    keep_best: Whole = Field(2, ge=0, description="Best evaluated checkpoints that are kept.")
    checkpoint_budget_mb: Whole = Field(2000, ge=1, description="Disk space of all checkpoints, in MB.")


class RunSection(Section):
    """What the run is and when it ends."""

    algo: Literal["ppo", "dqn"] = Field("ppo", description="Learning algorithm.")
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
    log_interval: FromOneOrAuto = Field(
        "auto", description="Updates between rows of the metrics stream. auto: about 1000 rows at most."
    )


class Config(Section):
    """Every value of a run, by section. `layers` builds it; `auto` is left until `rules.finish`."""

    env: EnvSection
    vector: VectorSection
    ppo: PpoSection
    dqn: DqnSection
    policy: PolicySection
    compute: ComputeSection
    evaluation: EvaluationSection
    checkpoints: CheckpointSection
    run: RunSection

    @property
    def algorithm(self) -> PpoSection | DqnSection:
        """The section of the chosen algorithm."""
        return self.dqn if self.run.algo == "dqn" else self.ppo

    @property
    def rollout_size(self) -> int:
        """Steps of one rollout over all environments."""
        return self.vector.n_envs * self.algorithm.n_steps_per_env

    def value(self, path: str) -> Any:
        """Return the value at `section.field`."""
        return operator.attrgetter(path)(self)


class FieldInfo(NamedTuple):
    """One field, for flags and documentation."""

    path: str  # section.field
    name: str  # the field; its flag has dashes for underscores
    type_text: str
    default: Any
    description: str
    aliases: tuple[str, ...]


_ALIASES = {"n_steps": "n_steps_per_env"}


def _type_text(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_text(arguments[0])
    if origin is Literal:
        return "|".join(arguments)
    if origin in (Union, types.UnionType):
        return "|".join(_type_text(argument) for argument in arguments)
    if origin is tuple:
        inner = _type_text(arguments[0])
        return f"{inner},..." if inner == "int" else f"{inner} ..."
    if origin is dict:
        return "key=value ..."
    return "none" if annotation is type(None) else str(annotation.__name__)


def describe_fields() -> Iterator[FieldInfo]:
    """Yield every field in the order of the schema."""
    for section, holder in Config.model_fields.items():
        fields: dict[str, Any] = holder.annotation.model_fields  # type: ignore[union-attr]
        for name, field in fields.items():
            yield FieldInfo(
                f"{section}.{name}",
                name,
                _type_text(field.annotation),
                field.default,
                field.description,
                tuple(alias for alias, target in _ALIASES.items() if target == name),
            )
