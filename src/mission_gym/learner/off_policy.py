"""What off-policy algorithms share: the settings of the replay, and facts for the plan.

An algorithm subclasses `ReplaySection` and `OffPolicyAlgorithm`, and `OffPolicyLearner` in
`off_policy_learner`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import RunFacts, Unused
from mission_gym.config.schema import AlgorithmSection, Config, Settled
from mission_gym.config.types import NONE, Number, PositiveOrAuto, Whole
from mission_gym.data import EnvSpec, Fact
from mission_gym.learner.blocks import make_noise_block
from mission_gym.learner.contract import Algorithm, Learner
from mission_gym.learner.replay import ReplayLayout
from mission_gym.store.metrics import Metric, read_metrics

_ENOUGH_TRANSITIONS = 2048  # in the replay, before updates are timed
_FEWEST_STEPS, _UPDATES_S, _LONGEST_S = 16, 0.02, 1.0  # of the timed updates
_NEVER = 1 << 60


_PROVISIONAL_RATIO = 1.0  # for plans and rules before costs are measured
_LONGER = 1.1  # gradient steps of a transition relative to collecting it, with a ratio of auto
RATIO_TEXT = (
    "Gradient steps per transition, independent of n_envs. auto: as many as the time of collecting it allows,"
    " by a measurement before the first update, within limits of the algorithm."
)


class ReplaySection(AlgorithmSection):
    """The hyperparameters of the replay and of learning from it."""

    n_steps_per_env: Whole = Field(4, ge=1, description="Steps of each environment between updates.")
    batch_size: Whole = Field(64, ge=1, description="Transitions of a gradient step.")
    replay_ratio: PositiveOrAuto = Field(0.25, description=RATIO_TEXT)
    replay_size: Whole = Field(
        100_000, ge=1, description="Capacity of the replay in transitions, over all environments."
    )
    learning_starts: Whole = Field(1000, ge=0, description="Steps collected before learning starts.")
    learning_rate: Number = Field(5e-4, gt=0, description="Step size of Adam.")
    learning_rate_final: Annotated[Number | None, NONE] = Field(
        None, ge=0, description="Learning rate at the last step, reached linearly. none: constant."
    )
    gamma: Number = Field(0.99, ge=0, le=1, description="Discount factor per step.")
    n_step: Whole = Field(3, ge=1, description="Rewards summed before the value of a later state is added.")
    prioritized: bool = Field(False, description="Sample transitions by the size of their last error.")
    prioritized_alpha: Number = Field(
        0.6, gt=0, le=1, description="Exponent of the error in the sampling probability; 0 is uniform."
    )
    prioritized_beta: Number = Field(
        0.4, ge=0, le=1, description="Initial exponent of the importance weights; 1 at the last step."
    )
    save_replay: bool = Field(True, description="Save the replay with the last checkpoint, for exact resume.")

    COSTS: ClassVar = frozenset(
        {"n_steps_per_env", "batch_size", "replay_ratio", "replay_size", "prioritized", "n_step"}
    )
    MEASURED: ClassVar = ("replay_ratio",)
    RATIO_RANGE: ClassVar[tuple[float, float]]  # of replay_ratio=auto
    EFFECTS: ClassVar = {"gamma": "values were learned under another discount and must adapt first"}

    @classmethod
    def fit(cls, resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
        """Refuse a replay that is too small for an update. A ratio that is to be measured gets a provisional
        value."""
        config = resolved.config
        if config.algorithm.open_names():
            path = f"{config.run.algo}.replay_ratio"
            resolved = resolved.with_values({path: _PROVISIONAL_RATIO}, "plan: provisional")
        section = replay_section(config)
        held = config.num_columns * (section.n_steps_per_env + section.n_step)
        least = max(section.batch_size, section.learning_starts, held)
        columns = "n_envs x num_agents" if config.vector.num_agents > 1 else "n_envs"
        if section.replay_size < least:
            problems.append(
                f"replay_size={section.replay_size} is too small: it must hold"
                f" batch_size={section.batch_size}, learning_starts={section.learning_starts} and {columns} x"
                f" (n_steps_per_env + n_step) = {held} transitions; use replay_size={least} or more"
                f" [{resolved.sources[f'{config.run.algo}.replay_size']}]"
            )
        return resolved


def replay_section(config: Config) -> ReplaySection:
    """The section of an off-policy algorithm."""
    assert isinstance(config.algorithm, ReplaySection)
    return config.algorithm


def settled_ratio(section: ReplaySection) -> float:
    """The replay ratio of a settled section."""
    assert section.replay_ratio != "auto", "replay_ratio=auto was not measured"
    return section.replay_ratio


def unused_replay_values(name: str) -> tuple[Unused, ...]:
    """The rules of the replay's values, for the section of this name."""

    def samples_uniformly(facts: RunFacts) -> bool:
        return not replay_section(facts.config).prioritized

    reason = "transitions are sampled uniformly; give --prioritized or remove it"
    return (
        Unused(
            "vector.blocks",
            lambda facts: facts.config.vector.blocks == "first_ready",
            "the replay needs the steps of every environment in order; remove it",
        ),
        Unused(f"{name}.prioritized_alpha", samples_uniformly, reason),
        Unused(f"{name}.prioritized_beta", samples_uniformly, reason),
    )


def make_replay_layout(config: Config, spec: EnvSpec) -> ReplayLayout:
    """The replay of a config in this environment."""
    section = replay_section(config)
    return ReplayLayout(
        leaves=spec.leaves,
        action=spec.action,
        mask_size=spec.mask_size,
        num_columns=config.num_columns,
        capacity=section.replay_size,
        n_step=section.n_step,
        gamma=section.gamma,
        episode_steps=spec.max_episode_steps or ReplayLayout._field_defaults["episode_steps"],
    )


class OffPolicyAlgorithm(Algorithm):
    """The facts of an algorithm that learns from a replay."""

    overlaps_on_cores = True
    why_no_memory = "its replay samples single transitions, without the steps before them"
    holds = "blocks, replay"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return super().metrics + read_metrics(Path(__file__).with_suffix(".yaml"))

    def trace_decay(self, config: Config) -> float:
        return 0.0  # minibatches come from the replay, so no trace is cut

    def refuse_lag(self, config: Settled) -> str:
        return ""  # it learns from any policy's transitions

    def held_bytes(self, config: Config, spec: EnvSpec) -> int:
        """The memory of the replay and its priorities."""
        layout = make_replay_layout(config, spec)
        slots = layout.length * layout.num_columns
        # A sum tree has two numbers per slot, rounded up to a power of two.
        tree = 16 * (1 << (slots - 1).bit_length()) if replay_section(config).prioritized else 0
        return layout.size_bytes + tree

    def explain_held(self, config: Config, spec: EnvSpec, free_bytes: int) -> str:
        need, size = self.held_bytes(config, spec), replay_section(config).replay_size
        fits = max(1, int(size * max(0, free_bytes) / need * 0.9))
        return (
            f"a replay of {size} transitions needs {need / 1e9:.1f} GB and {max(0, free_bytes) / 1e9:.1f} GB"
            f" are free for it; use replay_size={fits} or less [--replay-size]"
        )

    def choose_measured(
        self, resolved: Resolved, collect_s: float, update_s: float
    ) -> tuple[dict[str, Any], str]:
        """The replay ratio whose gradient steps take a little longer than collecting.

        If both overlap, the learner is busy all the time, also when their times vary. If they alternate, half
        of the time is spent on each: the time to a return is shortest there if the steps to it fall with the
        square root of the ratio.
        """
        low, high = replay_section(resolved.config).RATIO_RANGE
        step_s = update_s / _PROVISIONAL_RATIO
        wanted = _LONGER * collect_s / step_s
        ratio = float(f"{min(max(wanted, low), high):.2g}")
        reason = (
            f"replay_ratio {ratio:g}: collecting a transition takes {1e3 * collect_s:.3g} ms, a gradient step"
            f" {1e3 * step_s:.3g} ms"
        )
        if not low <= wanted <= high:
            reason += f"; auto is {low:g} to {high:g} for {self.name}"
        return {f"{self.name}.replay_ratio": ratio}, reason

    def describe_replay(self, config: Settled, spec: EnvSpec) -> list[Fact]:
        """The rows of the printed plan about batches and replay."""
        section, rollout = replay_section(config), config.rollout_size
        ratio = settled_ratio(section)
        size = self.held_bytes(config, spec) / 1e6
        sampled = "sampled uniformly"
        if section.prioritized:
            sampled = f"prioritised, alpha {section.prioritized_alpha:g}"
        saved = "saved with the last checkpoint" if section.save_replay else "not saved"
        return [
            Fact(
                "batch",
                f"{section.batch_size}",
                f"{ratio:g} gradient steps per transition = {ratio * rollout:g} per update,"
                f" from step {section.learning_starts:,} on",
            ),
            Fact("replay", f"{section.replay_size:,}", f"{size:.1f} MB, {sampled}, {saved}"),
        ]

    def notes_on_branch(self, config: Settled) -> list[str]:
        starts = replay_section(config).learning_starts
        return [f"the replay is not carried over; learning continues after {starts} steps"]

    def prepare_rehearsal(self, learner: Learner) -> None:
        from mission_gym.learner.off_policy_learner import OffPolicyLearner

        assert isinstance(learner, OffPolicyLearner)
        learner.learning_starts = 0

    def measure_update_s(self, learner: Learner, config: Settled, spec: EnvSpec) -> float:
        """Seconds of learning per transition, on blocks of noise, with some transitions in the replay."""
        from mission_gym.learner.off_policy_learner import OffPolicyLearner

        assert isinstance(learner, OffPolicyLearner)
        section, before = replay_section(config), learner.arrays()
        block = make_noise_block(spec, section.n_steps_per_env, config.num_columns)
        num, starts = block.reward.size, learner.learning_starts
        learner.learning_starts = _NEVER
        for _ in range(-(-min(_ENOUGH_TRANSITIONS, section.replay_size) // num)):
            learner.update(block)
        learner.learning_starts = 0
        learner.update(block)  # loads libraries and allocates memory
        made, first = 0, learner.gradient_steps
        begun = now = time.perf_counter()
        while now - begun < _UPDATES_S or learner.gradient_steps - first < _FEWEST_STEPS:
            learner.update(block)
            made, now = made + 1, time.perf_counter()
            if now - begun > _LONGEST_S:
                break
        learner.learning_starts = starts
        learner.load_arrays(before)
        learner.clock.take()
        return (now - begun) / (made * num)
