"""The hyperparameters of PPO: type, bounds, default and description of each, and the rules between them."""

from __future__ import annotations

from math import gcd
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import Unused, rollout_text
from mission_gym.config.schema import AlgorithmSection, Config, SearchRange, SettledAlgorithm
from mission_gym.config.sizes import choose_batch_size, nearest_divisors, pick_batch_size
from mission_gym.config.types import NONE, FromOneOrAuto, Number, Whole
from mission_gym.learner.contract import schedule_of

_BATCH, _BATCH_SHARE = 64, 1 / 32  # by default the larger of the two, on every device
ADVANTAGE_FLOOR = 1e-5  # of the standard deviation of advantages: equal ones carry no signal to amplify
# Steps of a chunk, by default; below the second number a note warns. Long chunks cost time, since steps are
# computed one after another.
_CHUNK, _SHORT_CHUNK = 32, 16
LEAST_CHUNKS = 4  # of a minibatch: with one column, normalising would remove the level of its advantages
LOG_RATIO_LIMIT = 20.0  # of a probability ratio: exp and the square of a gradient stay far from overflow


class StepSettings(NamedTuple):
    """The values that a gradient step needs, by the names of their fields; schedules are evaluated.

    Compiled code takes it directly. The loss gets scalar tensors, which a captured step reads again each
    time.
    """

    learning_rate: float
    clip_range: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    normalize_advantage: bool


class PpoSection(AlgorithmSection):
    """The hyperparameters of PPO."""

    n_steps_per_env: Whole = Field(128, ge=1, description="Steps of each environment in a rollout.")
    batch_size: Annotated[FromOneOrAuto | None, NONE] = Field(
        None,
        description="Transitions of a minibatch; divides the rollout. auto: about a quarter of it. none:"
        " about 64, or 1/32 of a rollout of more than 2048.",
    )
    n_epochs: Whole = Field(10, ge=1, description="Passes over each rollout; 4 for image observations.")
    bptt_steps: Whole = Field(
        _CHUNK,
        ge=1,
        description="With --recurrent, steps through which gradients flow back: rollouts are learned in"
        " chunks of this length. Divides n_steps_per_env, and is adapted to it unless given.",
    )
    learning_rate: Number = Field(3e-4, gt=0, description="Step size of Adam.")
    learning_rate_final: Annotated[Number | None, NONE] = Field(
        None, ge=0, description="Learning rate at the last step, reached linearly. none: constant."
    )
    gamma: Number = Field(0.99, ge=0, le=1, description="Discount factor per step.")
    gae_lambda: Number = Field(
        0.95, ge=0, le=1, description="Decay of the advantage's trace: 0 trusts values, 1 trusts returns."
    )
    clip_range: Number = Field(0.2, gt=0, description="Largest change of the probability ratio from 1.")
    clip_range_final: Annotated[Number | None, NONE] = Field(
        None, ge=0, description="Clip range at the last step, reached linearly. none: constant."
    )
    ent_coef: Number = Field(0.0, ge=0, description="Weight of the entropy bonus, for exploration.")
    ent_coef_final: Annotated[Number | None, NONE] = Field(
        None, ge=0, description="Entropy weight at the last step, reached linearly. none: constant."
    )
    vf_coef: Number = Field(0.25, ge=0, description="Weight of the value loss.")
    max_grad_norm: Number = Field(
        0.5,
        gt=0,
        description="Norm to which gradients are clipped, separately for actor and critic unless they share"
        " layers.",
    )
    target_kl: Annotated[Number | None, NONE] = Field(
        None,
        gt=0,
        description="KL divergence that ends an update after the current epoch. none: no limit.",
    )
    normalize_advantage: bool = Field(
        True, description="Scale advantages to mean 0 and standard deviation 1 per minibatch."
    )

    SCHEDULED: ClassVar = ("learning_rate", "clip_range", "ent_coef")
    COSTS: ClassVar = frozenset(
        {"n_steps_per_env", "batch_size", "n_epochs", "bptt_steps", "gamma", "gae_lambda"}
    )
    SEARCH: ClassVar = {
        "n_steps_per_env": SearchRange(16, 2048, "power"),
        "batch_size": SearchRange(32, 2048, "power"),
        "n_epochs": SearchRange(1, 20, "log"),
        "learning_rate": SearchRange(1e-5, 1e-2, "log"),
        "gamma": SearchRange(0.9, 0.9999, "gap"),
        "gae_lambda": SearchRange(0.8, 0.995, "gap"),
        "clip_range": SearchRange(0.1, 0.4),
        "ent_coef": SearchRange(1e-5, 0.1, "log"),
    }
    IMAGE_PROFILE: ClassVar = {"ppo.n_epochs": 4}
    UNUSED: ClassVar = (
        Unused(
            "ppo.bptt_steps",
            lambda facts: facts.config.policy.recurrent == "none",
            "the policy has no memory; give --recurrent gru or remove it",
        ),
    )
    EFFECTS: ClassVar = {"gamma": "values were learned under another discount and must adapt first"}

    def step_settings(self, step: int, total_steps: int) -> StepSettings:
        """The values of a gradient step at a step of the run."""
        scheduled = {name: schedule_of(self, name, total_steps).at(step) for name in self.SCHEDULED}
        given = {name: getattr(self, name) for name in StepSettings._fields}
        return StepSettings(**given | scheduled)

    @classmethod
    def fit(cls, resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
        """Minibatches divide the rollout; with memory they are whole chunks, which divide the segments."""
        resolved = _fit_chunks(resolved, notes, problems)
        config, path = resolved.config, f"{resolved.config.run.algo}.batch_size"
        chunk = _ppo(config).bptt_steps if config.policy.recurrent != "none" else None
        batch, rollout, source = config.algorithm.batch_size, config.rollout_size, resolved.sources[path]

        def pick(share: float, least: int = _BATCH) -> int:
            if chunk is None or rollout % chunk:
                return pick_batch_size(rollout, share, least)
            return chunk * pick_batch_size(rollout // chunk, share, LEAST_CHUNKS, multiple=1)

        if batch == "auto":
            return resolved.with_values({path: pick(0.25)}, "auto")
        if batch is None:
            return resolved.with_values({path: pick(max(_BATCH / rollout, _BATCH_SHARE))}, source)
        problem = _find_misfit(config, batch, chunk)
        if not problem:
            return resolved
        if resolved.explicit(path):
            near = (
                size for size in nearest_divisors(rollout, batch) if not _find_misfit(config, size, chunk)
            )
            sizes = "".join(f"{size}, " for size in near)[:-2]
            problems.append(f"{problem}; use {f'{sizes} or ' if sizes else ''}auto [{source}]")
            return resolved
        fitting = pick(batch / rollout, min(batch, _BATCH))
        notes.append(f"{problem}; {fitting} is used [{source}]")
        return resolved.with_values({path: fitting}, f"{source}, adapted")


def _find_misfit(config: Config, batch: int, chunk: int | None) -> str:
    """Why minibatches can't have this size; empty if they can."""
    rollout = config.rollout_size
    if rollout % batch:
        return f"batch_size={batch} does not divide the rollout of {rollout_text(config)}"
    if chunk is None or rollout % chunk:
        return ""
    least = chunk * min(LEAST_CHUNKS, rollout // chunk)
    if batch % chunk or batch < least:
        return (
            f"batch_size={batch} is not a multiple of bptt_steps={chunk}, or below {least}: with memory, a"
            f" minibatch consists of whole chunks, at least {LEAST_CHUNKS}"
        )
    return ""


def _fit_chunks(resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
    """Choose the longest chunk, of at most 32 steps, of which an explicit minibatch holds enough. A value
    that was given stays."""
    config, path = resolved.config, f"{resolved.config.run.algo}.bptt_steps"
    if config.policy.recurrent == "none":
        return resolved
    steps, chunk = config.algorithm.n_steps_per_env, _ppo(config).bptt_steps
    if resolved.sources[path] != "default" and steps % chunk == 0:  # such as that of a branch's parent
        return resolved
    if resolved.explicit(path):
        sizes = ", ".join(str(size) for size in nearest_divisors(steps, chunk))
        problems.append(
            f"bptt_steps={chunk} does not divide n_steps_per_env={steps} into equal chunks; use {sizes}"
            f" [{resolved.sources[path]}]"
        )
        return resolved
    fixed, batch = config.rollout_size, config.algorithm.batch_size
    if isinstance(batch, int) and resolved.explicit(f"{config.run.algo}.batch_size"):
        fixed = batch
    chunk = choose_batch_size(gcd(steps, fixed), min(_CHUNK, max(1, fixed // LEAST_CHUNKS)))
    if chunk < min(_SHORT_CHUNK, steps):
        notes.append(
            f"memory is learned in chunks of {chunk} steps; gradients reach no further back. {_CHUNK} need"
            f" a multiple of {_CHUNK} as n_steps_per_env, and a batch_size from {LEAST_CHUNKS * _CHUNK} up"
        )
    return resolved.with_values({path: chunk}, resolved.sources[path])


def _ppo(config: Config) -> PpoSection:
    assert isinstance(config.algorithm, PpoSection)
    return config.algorithm


class SettledPpo(PpoSection, SettledAlgorithm):
    """The same, settled."""

    batch_size: Whole


PpoSection.SETTLED = SettledPpo


def own_section(config: Config) -> SettledPpo:
    """PPO's section of a settled config."""
    assert isinstance(config.algorithm, SettledPpo)
    return config.algorithm
