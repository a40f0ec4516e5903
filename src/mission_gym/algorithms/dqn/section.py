"""The hyperparameters of DQN: type, bounds, default and description of each, and the rules between them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import RunFacts, Unused
from mission_gym.config.schema import AlgorithmSection, Config, SearchRange, SettledAlgorithm
from mission_gym.config.types import NONE, Number, Whole

_NOISY = "--exploration noisy has no epsilon; remove one"
_UNIFORM = "transitions are drawn uniformly; give --prioritized or remove it"


def _of(facts: RunFacts) -> DqnSection:
    assert isinstance(facts.config.algorithm, DqnSection)
    return facts.config.algorithm


def _is_noisy(facts: RunFacts) -> bool:
    return _of(facts).exploration == "noisy"


def _draws_uniformly(facts: RunFacts) -> bool:
    return not _of(facts).prioritized


class DqnSection(AlgorithmSection):
    """The hyperparameters of DQN."""

    n_steps_per_env: Whole = Field(4, ge=1, description="Steps of each environment between updates.")
    batch_size: Whole = Field(64, ge=1, description="Transitions of a gradient step.")
    replay_ratio: Number = Field(0.25, gt=0, description="Gradient steps per transition, for any n_envs.")
    replay_size: Whole = Field(
        100_000, ge=1, description="Transitions that the replay holds, over all environments."
    )
    learning_starts: Whole = Field(1000, ge=0, description="Steps collected before learning starts.")
    learning_rate: Number = Field(5e-4, gt=0, description="Step size of Adam.")
    learning_rate_final: Annotated[Number | None, NONE] = Field(
        None, ge=0, description="Learning rate at the last step, reached linearly. none: constant."
    )
    gamma: Number = Field(0.99, ge=0, le=1, description="Discount of a reward one step later.")
    n_step: Whole = Field(3, ge=1, description="Rewards that are summed before a value takes over.")
    max_grad_norm: Number = Field(10.0, gt=0, description="Norm to which gradients are clipped.")
    loss: Literal["huber", "mse"] = Field("huber", description="Linear beyond an error of 1, or squared.")
    double: bool = Field(True, description="The online network chooses the action that the target values.")
    dueling: bool = Field(False, description="Separate streams for the state's value and the advantages.")
    tau: Number = Field(
        1.0, gt=0, le=1, description="Share of the online network in the target: 1 copies it at intervals,"
        " less moves it after every gradient step.",
    )  # fmt: skip
    target_update_interval: Whole = Field(1000, ge=1, description="Steps between copies of the network.")
    exploration: Literal["epsilon", "noisy"] = Field(
        "epsilon", description="Random actions with probability epsilon, or noise in the last two layers."
    )
    exploration_initial_eps: Number = Field(1.0, ge=0, le=1, description="Epsilon at the first step.")
    exploration_final_eps: Number = Field(0.05, ge=0, le=1, description="Epsilon after it has fallen.")
    exploration_fraction: Number = Field(
        0.1, gt=0, le=1, description="Part of timesteps over which epsilon falls linearly."
    )
    noisy_sigma: Number = Field(0.5, gt=0, description="First size of the noise in noisy layers.")
    prioritized: bool = Field(False, description="Draw transitions by the size of their last error.")
    prioritized_alpha: Number = Field(0.6, gt=0, le=1, description="How much the error counts: 0 not at all.")
    prioritized_beta: Number = Field(
        0.4, ge=0, le=1, description="First exponent of the weights that correct for it; 1 at the last step."
    )
    save_replay: bool = Field(True, description="Save the replay with the last checkpoint, for exact resume.")

    COSTS: ClassVar = frozenset(
        {
            "n_steps_per_env", "batch_size", "replay_ratio", "replay_size", "prioritized", "n_step", "double",
            "dueling", "exploration",
        }
    )  # fmt: skip
    SEARCH: ClassVar = {
        "batch_size": SearchRange(16, 512, "power"),
        "replay_ratio": SearchRange(0.05, 1.0, "log"),
        "learning_rate": SearchRange(1e-5, 1e-2, "log"),
        "gamma": SearchRange(0.9, 0.9999, "gap"),
        "n_step": SearchRange(1, 10, "log"),
        "target_update_interval": SearchRange(100, 10_000, "log"),
        "exploration_final_eps": SearchRange(0.01, 0.2, "log"),
        "exploration_fraction": SearchRange(0.02, 0.5, "log"),
    }
    EFFECTS: ClassVar = {"gamma": "values were learned under another discount and move first"}
    PROFILE: ClassVar = {"vector.n_envs": 8, "policy.network_arch": (128, 128), "policy.activation": "relu"}
    UNUSED: ClassVar = (
        Unused(
            "vector.blocks",
            lambda facts: facts.config.vector.blocks == "first_ready",
            "the replay takes every environment's steps in their order; remove it",
        ),
        Unused("policy.critic_keys", lambda facts: True, "dqn has no critic; remove it, or use ppo"),
        Unused("dqn.exploration_initial_eps", _is_noisy, _NOISY),
        Unused("dqn.exploration_final_eps", _is_noisy, _NOISY),
        Unused("dqn.exploration_fraction", _is_noisy, _NOISY),
        Unused(
            "dqn.noisy_sigma",
            lambda facts: not _is_noisy(facts),
            "there are no noisy layers; give --exploration noisy or remove it",
        ),
        Unused("dqn.prioritized_alpha", _draws_uniformly, _UNIFORM),
        Unused("dqn.prioritized_beta", _draws_uniformly, _UNIFORM),
        Unused(
            "dqn.target_update_interval",
            lambda facts: _of(facts).tau < 1,
            "with tau below 1 the target moves after every gradient step; remove one",
        ),
    )

    @classmethod
    def fit(cls, resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
        """Refuse a replay that can't hold what an update needs, and an epsilon that rises."""
        config = resolved.config
        dqn = config.algorithm
        assert isinstance(dqn, DqnSection)
        held = config.num_columns * (dqn.n_steps_per_env + dqn.n_step)
        least = max(dqn.batch_size, dqn.learning_starts, held)
        rows = "n_envs x num_agents" if config.vector.num_agents > 1 else "n_envs"
        if dqn.replay_size < least:
            problems.append(
                f"replay_size={dqn.replay_size} is too small: it must hold batch_size={dqn.batch_size},"
                f" learning_starts={dqn.learning_starts} and {rows} x (n_steps_per_env + n_step) = {held}"
                f" transitions; use replay_size={least} or more [{resolved.sources['dqn.replay_size']}]"
            )
        if dqn.exploration_final_eps > dqn.exploration_initial_eps:
            problems.append(
                f"exploration_final_eps={dqn.exploration_final_eps} is above exploration_initial_eps="
                f"{dqn.exploration_initial_eps}, and epsilon only falls; lower it"
                f" [{resolved.sources['dqn.exploration_final_eps']}]"
            )
        return resolved

    def scheduled_names(self) -> list[str]:
        return [*super().scheduled_names(), *(["epsilon"] if self.exploration == "epsilon" else [])]


class SettledDqn(DqnSection, SettledAlgorithm):
    """The same, settled."""

    batch_size: Whole


DqnSection.SETTLED = SettledDqn


def own_section(config: Config) -> SettledDqn:
    """DQN's section of a settled config."""
    assert isinstance(config.algorithm, SettledDqn)
    return config.algorithm
