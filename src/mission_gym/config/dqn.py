"""The hyperparameters of DQN: type, bounds, default and description of each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mission_gym.config.types import NONE, Number, Section, Whole


class DqnSection(Section):
    """The hyperparameters of DQN."""

    n_steps_per_env: Whole = Field(4, ge=1, description="Steps of each environment between updates.")
    batch_size: Whole = Field(32, ge=1, description="Transitions of a gradient step.")
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
    n_step: Whole = Field(1, ge=1, description="Rewards that are summed before a value takes over.")
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
    frame_stack: Whole = Field(
        1,
        ge=1,
        description="Frames along the first axis of an image; the replay stores each once.",
    )
    save_replay: bool = Field(True, description="Save the replay with the last checkpoint, for exact resume.")
