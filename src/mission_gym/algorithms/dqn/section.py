"""The hyperparameters of DQN: type, bounds, default and description of each, and the rules between them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import RunFacts, Unused
from mission_gym.config.schema import Config, SearchRange
from mission_gym.config.types import Number, Whole
from mission_gym.learner.off_policy import ReplaySection, unused_replay_values

_NOISY = "--exploration noisy has no epsilon; remove one"


def dqn_section(config: Config) -> DqnSection:
    """DQN's section of a config."""
    assert isinstance(config.algorithm, DqnSection)
    return config.algorithm


def _is_noisy(facts: RunFacts) -> bool:
    return dqn_section(facts.config).exploration == "noisy"


class DqnSection(ReplaySection):
    """The hyperparameters of DQN."""

    max_grad_norm: Number = Field(10.0, gt=0, description="Norm to which gradients are clipped.")
    loss: Literal["huber", "mse"] = Field("huber", description="Huber loss or mean squared error.")
    double: bool = Field(
        True,
        description="Double DQN: the online network selects the next action, the target network rates it.",
    )
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
    exploration_final_eps: Number = Field(0.05, ge=0, le=1, description="Epsilon at the end of its schedule.")
    exploration_fraction: Number = Field(
        0.1, gt=0, le=1, description="Share of timesteps over which epsilon decreases linearly."
    )
    noisy_sigma: Number = Field(0.5, gt=0, description="Initial size of the noise in noisy layers.")

    COSTS: ClassVar = ReplaySection.COSTS | {"double", "dueling", "exploration"}
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
    RATIO_RANGE: ClassVar = (0.25, 1.0)  # from the default to RL Zoo's highest
    PROFILE: ClassVar = {"vector.n_envs": 8, "policy.network_arch": (128, 128), "policy.activation": "relu"}
    # A step that waits 15 ms limits 8 environments to 530 steps per second. These rollouts are as large.
    WAITING_PROFILE: ClassVar = {"vector.n_envs": 32, "dqn.n_steps_per_env": 1}
    UNUSED: ClassVar = (
        *unused_replay_values("dqn"),
        Unused("policy.critic_keys", lambda facts: True, "dqn has no critic; remove it, or use ppo"),
        Unused("dqn.exploration_initial_eps", _is_noisy, _NOISY),
        Unused("dqn.exploration_final_eps", _is_noisy, _NOISY),
        Unused("dqn.exploration_fraction", _is_noisy, _NOISY),
        Unused(
            "dqn.noisy_sigma",
            lambda facts: not _is_noisy(facts),
            "there are no noisy layers; give --exploration noisy or remove it",
        ),
        Unused(
            "dqn.target_update_interval",
            lambda facts: dqn_section(facts.config).tau < 1,
            "with tau below 1 the target moves after every gradient step; remove one",
        ),
    )

    @classmethod
    def fit(cls, resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
        """Refuse a replay that is too small, and an epsilon that increases."""
        dqn = dqn_section(resolved.config)
        if dqn.exploration_final_eps > dqn.exploration_initial_eps:
            problems.append(
                f"exploration_final_eps={dqn.exploration_final_eps} is above exploration_initial_eps="
                f"{dqn.exploration_initial_eps}, and epsilon only decreases; lower it"
                f" [{resolved.sources['dqn.exploration_final_eps']}]"
            )
        return super().fit(resolved, notes, problems)

    def scheduled_names(self) -> list[str]:
        return [*super().scheduled_names(), *(["epsilon"] if self.exploration == "epsilon" else [])]
