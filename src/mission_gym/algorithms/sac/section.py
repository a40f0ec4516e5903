"""The hyperparameters of SAC: type, bounds, default and description of each, and the rules between them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import Unused
from mission_gym.config.schema import Config, SearchRange
from mission_gym.config.types import NONE, Number, PositiveOrAuto, Whole
from mission_gym.learner.off_policy import RATIO_TEXT, ReplaySection, unused_replay_values


class SacSection(ReplaySection):
    """The hyperparameters of SAC."""

    batch_size: Whole = Field(256, ge=1, description="Transitions of a gradient step.")
    replay_ratio: PositiveOrAuto = Field(1.0, description=RATIO_TEXT)
    replay_size: Whole = Field(
        1_000_000, ge=1, description="Capacity of the replay in transitions, over all environments."
    )
    learning_rate: Number = Field(3e-4, gt=0, description="Step size of Adam, of all three optimizers.")
    n_step: Whole = Field(1, ge=1, description="Rewards summed before the value of a later state is added.")
    tau: Number = Field(
        0.005, gt=0, le=1, description="Share of the critics in their targets per gradient step."
    )
    policy_delay: Whole = Field(
        1, ge=1, description="Gradient steps of the critics per step of actor and temperature."
    )
    temperature_init: Number = Field(
        0.1, gt=0, description="Initial weight of the entropy, in units of the returns' standard deviation."
    )
    learn_temperature: bool = Field(
        True, description="Tune the temperature to target_entropy; otherwise it is fixed."
    )
    target_entropy: Annotated[Number | None, NONE] = Field(
        None, description="Entropy of the policy that the temperature aims at. none: minus the action's size."
    )
    critic_layer_norm: bool = Field(False, description="Normalize the hidden layers of the critics.")
    num_quantiles: Whole = Field(
        1, ge=1, description="Outputs of each critic: 1 for the mean, more for quantiles of the return (TQC)."
    )
    drop_quantiles: Whole = Field(
        2,
        ge=0,
        description="Highest quantiles of each critic that targets leave out: they overestimate.",
    )

    COSTS: ClassVar = ReplaySection.COSTS | {"policy_delay", "critic_layer_norm", "num_quantiles"}
    SEARCH: ClassVar = {
        "batch_size": SearchRange(64, 1024, "power"),
        "replay_ratio": SearchRange(0.25, 4.0, "log"),
        "learning_rate": SearchRange(1e-4, 3e-3, "log"),
        "gamma": SearchRange(0.9, 0.9999, "gap"),
        "tau": SearchRange(1e-3, 0.1, "log"),
        "n_step": SearchRange(1, 5, "log"),
    }
    RATIO_RANGE: ClassVar = (0.5, 20.0)
    NORM_RATIO: ClassVar = 2.0  # above it, auto normalizes the critics' layers
    PROFILE: ClassVar = {"vector.n_envs": 4, "policy.network_arch": (256, 256), "policy.activation": "relu"}
    IMAGE_PROFILE: ClassVar = {"sac.replay_size": 50_000}
    UNUSED: ClassVar = (
        *unused_replay_values("sac"),
        Unused(
            "sac.drop_quantiles",
            lambda facts: sac_section(facts.config).num_quantiles == 1,
            "the critics have no quantiles; give --num-quantiles or remove it",
        ),
        Unused(
            "sac.target_entropy",
            lambda facts: not sac_section(facts.config).learn_temperature,
            "the temperature is not learned; remove one",
        ),
        Unused(
            "policy.log_std_init",
            lambda facts: True,
            "the standard deviation depends on the observation; remove it",
        ),
    )

    @classmethod
    def fit(cls, resolved: Resolved, notes: list[str], problems: list[str]) -> Resolved:
        """Refuse a replay that is too small, and targets without a quantile."""
        sac = sac_section(resolved.config)
        if sac.num_quantiles > 1 and sac.drop_quantiles >= sac.num_quantiles:
            problems.append(
                f"drop_quantiles={sac.drop_quantiles} leaves none of num_quantiles={sac.num_quantiles}; use"
                f" less [{resolved.sources['sac.drop_quantiles']}]"
            )
        return super().fit(resolved, notes, problems)


def sac_section(config: Config) -> SacSection:
    """SAC's section of a config."""
    assert isinstance(config.algorithm, SacSection)
    return config.algorithm
